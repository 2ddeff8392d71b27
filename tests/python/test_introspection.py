"""explain, isa, show_config, and what importing tileformer does and does not do."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F

import tileformer
from tileformer import _C


def qkv():
    return torch.randn(1, 4, 12, 16), torch.randn(1, 2, 12, 16), torch.randn(1, 2, 12, 16)


def test_isa_is_one_of_those_supported():
    assert tileformer.isa() in _C.supported_isas()
    assert set(_C.supported_isas()) <= set(_C.compiled_isas())
    assert _C.supported_isas()[-1] == "portable"


def test_show_config(capsys):
    assert tileformer.show_config() is None
    text = capsys.readouterr().out
    for word in (tileformer.__version__, tileformer.isa(), torch.__version__, "threads", "torch sdpa"):
        assert word in text


def test_explain_names_the_plan():
    q, k, v = qkv()
    text = tileformer.explain(tileformer.flash_attention, q, k, v, causal=True)
    assert "attention_inference" in text and tileformer.isa() in text and "[1, 4, 12, 16]" in text
    assert "copied" not in text


def test_explain_reports_copies():
    q, k, v = qkv()
    text = tileformer.explain(tileformer.flash_attention, q, k[..., ::2].repeat(1, 1, 1, 2)[..., ::1], v)
    assert "copied" not in text
    strided = torch.randn(1, 2, 12, 32)[..., ::2]
    text = tileformer.explain(tileformer.flash_attn_func, *(t.transpose(1, 2) for t in (q, strided, strided)))
    assert "copied because their last dimension is not adjacent in memory: key, value" in text


def test_explain_reports_the_slow_reference():
    q, k, v = (t.double() for t in qkv())
    assert "reference" in tileformer.explain(tileformer.flash_attention, q, k, v)


def test_explain_sees_every_call_of_a_function():
    q, k, v = qkv()
    text = tileformer.explain(lambda: [tileformer.flash_attention(q, k, v) for _ in range(3)])
    assert "[1]" in text and "[3]" in text and "[4]" not in text
    assert tileformer.explain(torch.add, q, q) == "no call of attention or experts was made"


def test_explain_computes_no_attention_and_keeps_counts():
    q, k, v = qkv()
    before = _C.sdpa_counts()
    seen = []
    with tileformer.enabled():
        text = tileformer.explain(
            lambda: seen.append(F.scaled_dot_product_attention(q, k, v, enable_gqa=True))
        )
    assert tileformer.isa() in text and _C.sdpa_counts() == before
    assert seen[0].shape == q.shape and (seen[0] == 0).all()


def test_explain_torch_sdpa_when_not_enabled():
    q, k, v = qkv()
    assert "not enabled" in tileformer.explain(F.scaled_dot_product_attention, q, k, v, enable_gqa=True)
    with tileformer.enabled():
        text = tileformer.explain(
            F.scaled_dot_product_attention, *(t.double() for t in (q, k, v)), enable_gqa=True
        )
    assert "stay with torch" in text


def test_explain_raises_what_the_call_would_raise():
    q, k, v = qkv()
    with pytest.raises(ValueError, match="key"):
        tileformer.explain(tileformer.flash_attention, q, k[..., :3], v)


def run(code: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.strip()


def test_import_leaves_transformers_and_torch_sdpa_alone():
    code = "import sys, tileformer; print('transformers' in sys.modules, tileformer._C.sdpa_override())"
    assert run(code) == "False False"


@pytest.mark.slow
@pytest.mark.parametrize("order", ["tileformer, transformers", "transformers, tileformer"])
def test_registered_with_transformers_in_either_order(order):
    code = f"""
import {order}
from transformers import modeling_utils, masking_utils
import inspect
assert "tileformer" in modeling_utils.AttentionInterface._global_mapping
assert "tileformer" in masking_utils.AttentionMaskInterface._global_mapping
assert "AttentionInterface" in inspect.getsource(modeling_utils)
print(type(modeling_utils.__loader__).__name__, type(modeling_utils.__spec__.loader).__name__)
"""
    assert run(code) == "SourceFileLoader SourceFileLoader"


def test_registration_survives_a_search_that_imports_nothing(tmp_path):
    (tmp_path / "late.py").write_text("value = 1")
    code = f"""
import importlib.util, sys
from tileformer.integrations.after_import import after_import
sys.path.insert(0, {str(tmp_path)!r})
finders = list(sys.meta_path)
after_import("late", lambda: print("called with", sys.modules["late"].value))
assert importlib.util.find_spec("late") is not None
import late
print(sys.meta_path == finders)
"""
    assert run(code) == "called with 1\nTrue"


@pytest.mark.slow
def test_importing_the_integration_itself_first():
    code = """
import tileformer.integrations.transformers as plug
from transformers import modeling_utils
print(modeling_utils.AttentionInterface._global_mapping["tileformer"] is plug.attention_forward)
"""
    assert run(code) == "True"


def test_import_without_transformers():
    code = """
import sys
sys.modules["transformers"] = None  # as if it were not installed
import tileformer, torch
q = torch.ones(1, 1, 2, 4)
print(torch.equal(tileformer.flash_attention(q, q, q), q))
"""
    assert run(code) == "True"
