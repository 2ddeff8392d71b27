"""merge_attention_states: attention over all keys from the attention over parts of them."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from exact_attention import assert_matches, exact_attention
from paged_inputs import paged

import tileformer


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64], ids=str)
@pytest.mark.parametrize("cuts", [[0, 50], [0, 33, 50], [0, 1, 1, 20, 50]], ids=str)
def test_parts_are_attention_over_all(dtype, cuts):
    query, key, value = (torch.randn(2, 4, n, 24).to(dtype) for n in (5, 50, 50))
    parts = [
        tileformer.flash_attention(query, key[:, :, a:b], value[:, :, a:b], return_lse=True)
        for a, b in itertools.pairwise(cuts)
    ]
    out, lse = tileformer.merge_attention_states(*zip(*parts))
    expected, expected_lse = exact_attention(query, key, value)
    assert out.dtype == dtype and lse.dtype == parts[0][1].dtype
    assert_matches(out, expected)
    assert_matches(lse, expected_lse)
    packed = tileformer.merge_attention_states([o[0] for o, _ in parts], [x[0] for _, x in parts])
    assert torch.equal(packed[0], out[0]) and torch.equal(packed[1], lse[0])
    stacked = tileformer.merge_attention_states(*(torch.stack(t) for t in zip(*parts)))
    assert torch.equal(stacked[0], out) and torch.equal(stacked[1], lse)


def test_a_shared_prefix():
    """Two sequences attend to one prefix together, each to the rest of its own, and the states are merged."""
    prefix, rest = paged([32]), paged([5, 9], seed=1)
    query = torch.randn(2, 4, 32)
    shared = tileformer.paged_attention(
        query, *prefix.arguments(), cu_seqlens_query=torch.tensor([0, 2]), return_lse=True
    )
    own = tileformer.paged_attention(
        query, *rest.arguments(), cu_seqlens_query=torch.tensor([0, 1, 2]), return_lse=True
    )
    out, lse = tileformer.merge_attention_states(
        (shared[0].transpose(0, 1), own[0].transpose(0, 1)), (shared[1], own[1])
    )
    assert out.transpose(0, 1).is_contiguous()  # the layout of what went in
    for n in range(2):
        key, value = (
            torch.cat((a.dense[0], b.dense[n]), 1)[None]
            for a, b in ((prefix.key, rest.key), (prefix.value, rest.value))
        )
        expected, expected_lse = exact_attention(query[n][None, :, None], key, value)
        assert_matches(out[:, n : n + 1][None], expected)
        assert_matches(lse[:, n : n + 1][None], expected_lse)


def test_parts_that_saw_nothing():
    out, lse = torch.randn(1, 2, 3, 8), torch.randn(1, 2, 3)
    nothing, never = torch.full((1, 2, 3, 8), math.nan), torch.full((1, 2, 3), -math.inf)
    for outs, lses in (((out, nothing), (lse, never)), ((nothing, out), (never, lse))):
        merged, merged_lse = tileformer.merge_attention_states(outs, lses)
        torch.testing.assert_close(merged, out)
        torch.testing.assert_close(merged_lse, lse)
    merged, merged_lse = tileformer.merge_attention_states((nothing, nothing), (never, never))
    assert (merged == 0).all() and (merged_lse == -math.inf).all()


OUT, LSE = torch.randn(1, 2, 3, 8), torch.randn(1, 2, 3)
ERRORS = {
    "nothing": ([], [], "part_out is empty"),
    "counts": ([OUT, OUT], [LSE], "part_lse.*1.*2"),
    "shape": ([OUT, OUT[..., :4]], [LSE, LSE], "part_out"),
    "lse_shape": ([OUT, OUT], [LSE, LSE[..., :2]], "part_lse"),
    "lse_dtype": ([OUT], [LSE.half()], "part_lse.*float16"),
    "rank": ([OUT[0, 0]], [LSE[0, 0]], r"part_out\[0\] has 2 dimensions"),
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors(name):
    outs, lses, message = ERRORS[name]
    with pytest.raises(ValueError, match=message):
        tileformer.merge_attention_states(outs, lses)


def test_gradients_are_refused():
    with pytest.raises(RuntimeError, match=r"part_lse requires grad.*no_grad"):
        tileformer.merge_attention_states([OUT, OUT], [LSE, LSE.clone().requires_grad_()])


@pytest.mark.slow
def test_opcheck_and_compile():
    op = torch.ops.tileformer.merge_attention_states.default
    views = OUT.transpose(1, 2).contiguous().transpose(1, 2)
    torch.library.opcheck(op, ([OUT, OUT], [LSE, LSE]))
    torch.library.opcheck(op, ([views, OUT.bfloat16()], [LSE, LSE]))
    merge = torch.compile(tileformer.merge_attention_states, fullgraph=True, backend="aot_eager")
    for x, y in zip(merge([OUT, OUT * 2], [LSE, LSE]), op([OUT, OUT * 2], [LSE, LSE])):
        assert torch.equal(x, y)
