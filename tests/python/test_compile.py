"""torch.compile, torch.export, opcheck, autocast and fake tensors."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch._subclasses import FakeTensorMode

import tileformer

pytestmark = pytest.mark.slow  # what differs between ISAs is tested without a compiler
OPS = torch.ops.tileformer


def qkv(seq_q=10, seq_k=14, heads=4, kv_heads=2, dim=16, dtype=torch.float32):
    return tuple(
        torch.randn(2, h, n, dim).to(dtype) for h, n in ((heads, seq_q), (kv_heads, seq_k), (kv_heads, seq_k))
    )


def bshd(t: torch.Tensor) -> torch.Tensor:
    return t.transpose(1, 2).contiguous().transpose(1, 2)


def operator_samples():
    q, k, v = qkv()
    cu = torch.tensor([0, 4, 10], dtype=torch.int32), torch.tensor([0, 9, 14], dtype=torch.int32)
    yield (q, k, v)
    yield (bshd(q), bshd(k), bshd(v), torch.rand(10, 14) > 0.3, 0.3, 2, 5, 0, 2.0)
    yield (q, k, v, None, None, 0, -1, -1, 0.0, torch.rand(4), torch.rand(4))
    yield (q[:1], k[:1], v[:1], None, None, 2, -1, -1, 0.0, None, None, None, None, *cu)
    yield (q.bfloat16(), k.bfloat16(), v[..., :8].bfloat16(), None, None, 1)
    yield (q, k, v, None, None, 0, -1, -1, 0.0, *(None,) * 6, 0.3, torch.tensor([3, 4]))


@pytest.mark.parametrize("op", [OPS.attention_inference.default, OPS.attention_forward.default], ids=str)
@pytest.mark.parametrize("sample", range(6))
def test_opcheck(op, sample):
    torch.library.opcheck(op, list(operator_samples())[sample])


@pytest.mark.parametrize("sample", range(6))
def test_opcheck_of_the_backward(sample):
    arguments = list(operator_samples())[sample]
    out, lse = OPS.attention_forward(*arguments)
    mask = len(arguments) > 3 and arguments[3] is not None and arguments[3].is_floating_point()
    sinks = len(arguments) > 9 and arguments[9] is not None
    wanted = 7 | 8 * mask | 16 * sinks
    results = (torch.randn_like(out), torch.randn_like(lse), out, lse, wanted)
    torch.library.opcheck(OPS.attention_backward.default, (*results, *arguments))


@pytest.mark.parametrize("sample", range(6))
def test_opcheck_with_gradients(sample):
    arguments = [
        t.clone().requires_grad_() if isinstance(t, torch.Tensor) and t.is_floating_point() and i != 10 else t
        for i, t in enumerate(list(operator_samples())[sample])
    ]
    torch.library.opcheck(OPS.attention_forward.default, arguments)


def test_compiled_training_step():
    q, k, v = (t.requires_grad_() for t in qkv())
    mask = torch.randn(4, 10, 14, requires_grad=True)

    def loss(q, k, v, mask):
        out, lse = tileformer.flash_attention(
            q.sin(), k, v, attn_mask=mask, causal=True, softcap=4.0, return_lse=True
        )
        return out.square().sum() + lse.sum()

    expected = torch.autograd.grad(loss(q, k, v, mask), (q, k, v, mask))
    actual = torch.autograd.grad(torch.compile(loss, fullgraph=True)(q, k, v, mask), (q, k, v, mask))
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)


FUNCTIONS = {
    "flash_attention": lambda q, k, v: tileformer.flash_attention(
        q, k, v, causal=True, window=(6, 0), softcap=5.0
    ),
    "with_lse": lambda q, k, v: tileformer.flash_attention(q, k, v, return_lse=True),
    "flash_attn_func": lambda q, k, v: tileformer.flash_attn_func(
        q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), causal=True
    ),
    "sdpa": lambda q, k, v: tileformer.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True),
    "between_other_operations": lambda q, k, v: (
        tileformer.flash_attention(q * 2, k.sin(), v, causal=True).relu() + 1
    ),
}


@pytest.mark.parametrize(
    "name, backend",
    [
        *((name, "aot_eager") for name in FUNCTIONS),
        ("with_lse", "inductor"),
        ("between_other_operations", "inductor"),
    ],
)
def test_compile_fullgraph(name, backend):
    function, inputs = FUNCTIONS[name], qkv()
    compiled = torch.compile(function, fullgraph=True, backend=backend)
    with torch.no_grad():
        torch.testing.assert_close(compiled(*inputs), function(*inputs))


def test_compile_with_changing_lengths():
    function = FUNCTIONS["flash_attention"]
    compiled = torch.compile(function, fullgraph=True, dynamic=True, backend="aot_eager")
    for seq_q, seq_k in ((10, 14), (11, 30), (40, 41)):
        inputs = tuple(bshd(t) for t in qkv(seq_q, seq_k))
        out = compiled(*inputs)
        assert torch.equal(out, function(*inputs)) and out.stride() == function(*inputs).stride()


def test_compiled_dropout_draws_anew_on_every_run():
    q, k, v = qkv()
    compiled = torch.compile(
        lambda q: tileformer.flash_attention(q, k, v, dropout_p=0.5), fullgraph=True, backend="aot_eager"
    )
    torch.manual_seed(0)
    first, second = compiled(q), compiled(q)
    torch.manual_seed(0)
    assert torch.equal(compiled(q), first) and not torch.equal(first, second)


def test_compiled_torch_sdpa_reaches_the_override():
    q, k, v = qkv(10, 10, 4, 4)
    compiled = torch.compile(
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True), fullgraph=True
    )
    with torch.no_grad(), tileformer.enabled():
        before = tileformer._C.sdpa_counts()["tileformer"]
        out = compiled(bshd(q), bshd(k), bshd(v))
        assert tileformer._C.sdpa_counts()["tileformer"] == before + 1
    torch.testing.assert_close(out, F.scaled_dot_product_attention(q, k, v, is_causal=True))


class Layer(torch.nn.Module):
    def forward(self, q, k, v):
        return tileformer.flash_attention(q, k, v, causal=True)


def test_export_keeps_the_operator():
    length = torch.export.Dim("length", min=2, max=512)
    shapes = ({2: length}, {2: length}, {2: length})
    inputs = qkv(14, 14)
    program = torch.export.export(Layer(), inputs, dynamic_shapes=shapes)
    names = [str(node.target) for node in program.graph.nodes if node.op == "call_function"]
    assert "tileformer.attention_inference.default" in names
    other = qkv(31, 31)
    assert torch.equal(program.module()(*other), Layer()(*other))
    assert torch.equal(program.run_decompositions().module()(*other), Layer()(*other))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("compiled", [False, True])
def test_autocast(dtype, compiled):
    q, k, v = qkv()
    mask = torch.randn(10, 14)

    def function(q, k, v):
        return tileformer.flash_attention(q, k, v, attn_mask=mask)

    expected = function(*(t.to(dtype) for t in (q, k, v)))
    run = torch.compile(function, fullgraph=True, backend="aot_eager") if compiled else function
    with torch.autocast("cpu", dtype=dtype):
        out = run(q, k, v)
    assert out.dtype == dtype and torch.equal(out, expected)


def test_autocast_leaves_float64_alone():
    q, k, v = qkv(dtype=torch.float64)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert tileformer.flash_attention(q, k, v).dtype == torch.float64


def test_fake_tensors_have_the_shape_and_strides_of_real_ones():
    cases = [
        qkv(),
        tuple(bshd(t) for t in qkv()),
        qkv(0, 3),
        tuple(t.permute(2, 0, 1, 3) for t in qkv(2, 2, 5, 5)),
    ]
    for inputs in cases:
        real = OPS.attention_forward(*inputs)
        with FakeTensorMode() as mode:
            fake = OPS.attention_forward(*(mode.from_tensor(t) for t in inputs))
        for r, f in zip(real, fake):
            assert (r.shape, r.stride(), r.dtype) == (f.shape, f.stride(), f.dtype)


def test_meta_tensors():
    q, k, v = (t.to("meta") for t in qkv())
    out, lse = tileformer.flash_attention(q, k, v, return_lse=True)
    assert out.device.type == "meta" and out.shape == q.shape and lse.shape == q.shape[:3]


@pytest.mark.parametrize("order", [(0, 3, 1, 2), (0, 2, 3, 1), (3, 0, 1, 2)])
def test_rows_that_are_not_adjacent_in_memory(order):
    x = torch.randn(4, 6, 8, 10, requires_grad=True)

    def loss(x):
        y = x.permute(*order)[..., ::2]
        return tileformer.flash_attention(y, y, y).transpose(1, 2).reshape(-1).square().sum()

    expected = torch.autograd.grad(loss(x), x)
    actual = torch.autograd.grad(torch.compile(loss, backend="aot_eager", fullgraph=True)(x), x)
    torch.testing.assert_close(actual, expected)
    with torch.no_grad():
        torch.testing.assert_close(torch.compile(loss, backend="aot_eager")(x), loss(x))
