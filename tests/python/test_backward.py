"""Gradients of attention through autograd, against float64."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from exact_attention import exact_attention
from torch.utils.checkpoint import checkpoint

import tileformer

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
ROUNDOFF = {torch.float32: 2.0**-24, torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}


def inputs(dtype=torch.float32, batch=2, heads=4, kv_heads=2, seq_q=33, seq_k=50, dim=24, dim_v=None):
    sizes = [(heads, seq_q, dim), (kv_heads, seq_k, dim), (kv_heads, seq_k, dim_v or dim)]
    return [torch.randn(batch, *size).to(dtype).requires_grad_() for size in sizes]


def exact_gradients(tensors, grad_out, grad_lse=None, **options):
    """The same in float64; tensors: query, key, value and whatever of options requires grad, by name."""
    wide = {name: t.detach().double().requires_grad_() for name, t in tensors.items()}
    options = {name: wide.get(name, option) for name, option in options.items()}
    out, lse = exact_attention(wide["query"], wide["key"], wide["value"], **options)
    total = (out * grad_out.double()).sum()
    if grad_lse is not None:
        total = total + (lse * grad_lse.double()).sum()
    return torch.autograd.grad(total, list(wide.values()))


def check(actual, expected, dtype, factor=8.0):
    for name, a, e in zip(("query", "key", "value", "more", "more"), actual, expected):
        assert a.shape == e.shape
        error = (a.double() - e).norm() / e.norm()
        assert error < factor * ROUNDOFF[dtype], f"{name}: relative error {error:.1e}"


OPTIONS = {
    "plain": {},
    "causal": dict(causal=True),
    "top_left": dict(causal="top_left"),
    "window": dict(causal=True, window=(7, 0)),
    "both_windows": dict(window=(9, 4)),
    "softcap": dict(softcap=1.5, causal=True),
    "scale": dict(scale=0.3),
    "bool_mask": dict(attn_mask=torch.rand(2, 1, 33, 50) > 0.3),
    "alibi": dict(alibi_slopes=torch.tensor([0.5, 0.25, 0.1, 0.02]), causal=True),
}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", OPTIONS)
def test_gradients(name, dtype):
    q, k, v = inputs(dtype)
    options = OPTIONS[name]
    out, lse = tileformer.flash_attention(q, k, v, return_lse=True, **options)
    grad_out, grad_lse = torch.randn_like(out), torch.randn_like(lse)
    if name == "bool_mask":
        grad_lse = grad_lse.masked_fill(lse.isinf(), 0)
    actual = torch.autograd.grad((out, lse), (q, k, v), (grad_out, grad_lse))
    check(actual, exact_gradients(dict(query=q, key=k, value=v), grad_out, grad_lse, **options), dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(2, 4, 33, 50), (1, 4, 33, 50), (2, 1, 33, 1), (33, 50), (50,), (1, 1)])
def test_gradients_of_mask_and_sinks(shape, dtype):
    q, k, v = inputs(dtype)
    mask, sinks = torch.randn(shape).to(dtype).requires_grad_(), torch.randn(4).to(dtype).requires_grad_()
    out = tileformer.flash_attention(q, k, v, attn_mask=mask, sinks=sinks)
    grad_out = torch.randn_like(out)
    tensors = dict(query=q, key=k, value=v, attn_mask=mask, sinks=sinks)
    actual = torch.autograd.grad(out, list(tensors.values()), grad_out)
    assert actual[3].dtype == actual[4].dtype == dtype
    expected = exact_gradients(tensors, grad_out, attn_mask=mask, sinks=sinks)
    check(actual[:3], expected[:3], dtype)
    # The others are sums of terms that nearly cancel: their error is measured by the size of the terms.
    terms = dict(tensors, attn_mask=mask.expand(2, 4, 33, 50))
    size = exact_gradients(terms, grad_out, attn_mask=terms["attn_mask"], sinks=sinks)[3].norm()
    for a, e in zip(actual[3:], expected[3:]):
        assert a.shape == e.shape and (a.double() - e).norm() < 16 * ROUNDOFF[dtype] * size


def test_gradcheck_in_float64():
    q, k, v = inputs(torch.float64, 1, 4, 2, 6, 8, 5, 3)
    mask, sinks = (torch.randn(s, dtype=torch.float64).requires_grad_() for s in ((1, 4, 6, 8), (4,)))

    def function(q, k, v, mask, sinks):
        return tileformer.flash_attention(
            q, k, v, attn_mask=mask, sinks=sinks, softcap=3.0, causal=True, window=(5, 0), return_lse=True
        )

    assert torch.autograd.gradcheck(function, (q, k, v, mask, sinks))


@pytest.mark.parametrize("wanted", [(0,), (1,), (2,), (0, 2), (1, 2)])
def test_gradients_of_some_inputs_only(wanted):
    q, k, v = inputs()
    full = torch.autograd.grad(tileformer.flash_attention(q, k, v, causal=True).square().sum(), (q, k, v))
    tensors = [t.detach() for t in (q, k, v)]
    for i in wanted:
        tensors[i].requires_grad_()
    some = [tensors[i] for i in wanted]
    actual = torch.autograd.grad(tileformer.flash_attention(*tensors, causal=True).square().sum(), some)
    assert all(torch.equal(a, full[i]) for i, a in zip(wanted, actual))


def test_lse_alone_is_differentiable():
    q, k, v = inputs()
    lse = tileformer.flash_attention(q, k, v, return_lse=True)[1]
    actual = torch.autograd.grad(lse.sum(), (q, k))
    zeros = torch.zeros(2, 4, 33, 24)
    check(
        actual, exact_gradients(dict(query=q, key=k, value=v), zeros, torch.ones_like(lse))[:2], torch.float32
    )


@pytest.mark.parametrize("layout", ["expanded", "transposed", "last_strided"])
def test_gradients_that_arrive_in_any_layout(layout):
    q, k, v = inputs()
    out = tileformer.flash_attention(q, k, v)
    grad = {
        "expanded": torch.ones(()).expand(out.shape),
        "transposed": torch.randn(2, 33, 4, 24).transpose(1, 2),
        "last_strided": torch.randn(2, 4, 24, 33).transpose(2, 3),
    }[layout]
    actual = torch.autograd.grad(out, (q, k, v), grad, retain_graph=True)
    expected = torch.autograd.grad(out, (q, k, v), grad.contiguous())
    assert all(torch.equal(a, e) for a, e in zip(actual, expected))


def test_gradients_have_the_layout_of_their_inputs():
    q, k, v = (torch.randn(2, 9, 4, 16).transpose(1, 2).requires_grad_() for _ in range(3))
    for grad, t in zip(torch.autograd.grad(tileformer.flash_attention(q, k, v).sum(), (q, k, v)), (q, k, v)):
        assert grad.stride() == t.stride()


def test_dropout_follows_the_seed_and_drops_the_same_in_the_backward():
    q, k, v = inputs(seq_q=40, seq_k=40)

    def gradients(seed):
        torch.manual_seed(seed)
        return torch.autograd.grad(
            tileformer.flash_attention(q, k, v, dropout_p=0.4, causal=True).square().sum(), (q, k, v)
        )

    first, again, other = gradients(1), gradients(1), gradients(2)
    assert all(torch.equal(a, b) for a, b in zip(first, again))
    assert not any(torch.equal(a, b) for a, b in zip(first, other))
    # The derivative along a direction, by differences of the function with the same seed, in float64.
    wide = [t.detach().double() for t in (q, k, v)]
    direction = [torch.randn_like(t) for t in wide]

    def value(step):
        torch.manual_seed(1)
        moved = [t + step * d for t, d in zip(wide, direction)]
        return tileformer.flash_attention(*moved, dropout_p=0.4, causal=True).square().sum().item()

    slope = (value(1e-5) - value(-1e-5)) / 2e-5
    expected = sum((g.double() * d).sum() for g, d in zip(first, direction)).item()
    assert slope == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_activation_checkpointing(use_reentrant):
    q, k, v = inputs()

    def function(q, k, v):
        return tileformer.flash_attention(q * 2, k, v, causal=True, dropout_p=0.3)

    torch.manual_seed(0)
    expected = torch.autograd.grad(function(q, k, v).sum(), (q, k, v))
    torch.manual_seed(0)
    checkpoint(function, q, k, v, use_reentrant=use_reentrant).sum().backward()
    assert all(torch.equal(t.grad, e) for t, e in zip((q, k, v), expected))


def test_autocast():
    q, k, v = inputs()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = tileformer.flash_attention(q, k, v)
    assert out.dtype == torch.bfloat16
    grads = torch.autograd.grad(out.float().square().sum(), (q, k, v))
    low = [t.detach().bfloat16().requires_grad_() for t in (q, k, v)]
    expected = torch.autograd.grad(tileformer.flash_attention(*low).float().square().sum(), low)
    assert all(g.dtype == torch.float32 and torch.equal(g, e.float()) for g, e in zip(grads, expected))


def test_packed_sequences():
    q, k, v = (torch.randn(60, h, 16).requires_grad_() for h in (4, 2, 2))
    cu = torch.tensor([0, 13, 13, 40, 60], dtype=torch.int32)
    out = tileformer.flash_attn_varlen_func(q, k, v, cu, cu, 27, 27, causal=True)
    grad = torch.randn_like(out)
    actual = torch.autograd.grad(out, (q, k, v), grad)
    for begin, end in zip(cu[:-1].tolist(), cu[1:].tolist()):
        parts = [t[None, begin:end].detach().requires_grad_() for t in (q, k, v)]
        expected = torch.autograd.grad(
            tileformer.flash_attn_func(*parts, causal=True), parts, grad[None, begin:end]
        )
        assert all(torch.equal(a[begin:end], e[0]) for a, e in zip(actual, expected))


@pytest.mark.parametrize("sizes", [(0, 4, 5, 5), (2, 4, 0, 5), (2, 4, 5, 0)], ids=["batch", "seq_q", "seq_k"])
def test_sizes_of_zero(sizes):
    batch, heads, seq_q, seq_k = sizes
    q, k, v = inputs(batch=batch, heads=heads, seq_q=seq_q, seq_k=seq_k)
    out = tileformer.flash_attention(q, k, v)
    for grad, t in zip(torch.autograd.grad(out.sum(), (q, k, v)), (q, k, v)):
        assert grad.shape == t.shape and (grad == 0).all()


def test_the_same_bits_for_any_number_of_threads():
    q, k, v = inputs(torch.bfloat16, 1, 6, 2, 700, 700, 64)
    found = []
    threads = torch.get_num_threads()
    for n in (1, 2, 3):
        torch.set_num_threads(n)
        found.append(torch.autograd.grad(tileformer.flash_attention(q, k, v, causal=True).sum(), (q, k, v)))
    torch.set_num_threads(threads)
    assert all(torch.equal(a, b) for other in found[1:] for a, b in zip(found[0], other))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("seq", [1024, pytest.param(8192, marks=pytest.mark.slow)])
def test_long_sequences_are_within_twice_the_error_of_the_same_precision(seq, dtype):
    q, k, v = inputs(dtype, 1, 1, 1, seq, seq, 64)
    grad = torch.randn(1, 1, seq, 64).to(dtype)
    exact = exact_gradients(dict(query=q, key=k, value=v), grad, causal=True)
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        same = torch.autograd.grad(F.scaled_dot_product_attention(q, k, v, is_causal=True), (q, k, v), grad)
    actual = torch.autograd.grad(tileformer.flash_attention(q, k, v, causal=True), (q, k, v), grad)
    for name, a, s, e in zip("qkv", actual, same, exact):
        error, allowed = ((t.double() - e).norm().item() for t in (a, s))
        assert error <= 2 * allowed, f"{name}: {error:.2e}, same precision {allowed:.2e}"


def test_blocks_merged_by_lse_train_as_one():
    q, k, v = inputs(seq_q=20, seq_k=60)
    whole = torch.autograd.grad(tileformer.flash_attention(q, k, v).square().sum(), (q, k, v))
    parts = [
        tileformer.flash_attention(q, k[:, :, a:b], v[:, :, a:b], return_lse=True)
        for a, b in ((0, 25), (25, 60))
    ]
    weights = torch.stack([lse for _, lse in parts]).softmax(0)
    merged = sum(w[..., None] * out for w, (out, _) in zip(weights, parts))
    for a, e in zip(torch.autograd.grad(merged.square().sum(), (q, k, v)), whole):
        torch.testing.assert_close(a, e, rtol=1e-5, atol=1e-5)


def test_explain_names_the_plan_of_the_backward():
    q, k, v = inputs()
    text = tileformer.explain(lambda: tileformer.flash_attention(q, k, v).sum().backward())
    assert "tileformer::attention_backward" in text and "chunk" in text and "grad_out" in text


@pytest.mark.parametrize("scale", [1e2, 1e4, 1e7, 1e18])
def test_rows_with_one_key_have_probability_one_however_large_the_scores(scale):
    q, k, v = inputs(seq_q=64, seq_k=64, dim=64)
    large = q.detach() * scale
    (grad,) = torch.autograd.grad(tileformer.flash_attention(large, k, v).sum(), v)
    expected = exact_gradients(dict(query=large, key=k, value=v), torch.ones(2, 4, 64, 64))[2]
    # Scores are rounded to fp32: those of nearly the same size may change places.
    error = (grad.double() - expected).abs().max() / expected.abs().max()
    assert error < 1e-6 * min(scale, 1e3)
    assert abs(grad.sum() / (2 * 4 * 64 * 64) - 1) < 1e-3  # every query's weights add up to one


def test_a_finite_mask_of_any_size_gives_finite_results():
    q, k, v = inputs()
    mask = torch.zeros(33, 50)
    mask[3, 4], mask[5, 6], mask[7] = 3.3e38, -3.3e38, torch.finfo(torch.float32).min
    out = tileformer.flash_attention(q, k, v, attn_mask=mask)
    torch.testing.assert_close(out[:, :, 3], v[:, :, 4].repeat_interleave(2, 1), rtol=1e-6, atol=1e-6)
    for grad in torch.autograd.grad(out.square().sum(), (q, k, v)):
        assert grad.isfinite().all()


def test_vmap_keeps_gradients():
    q = torch.randn(3, 2, 5, 8, requires_grad=True)

    def gradient(attention):
        def row(x):
            return x + attention(x[None], x[None], x[None])[0]

        return torch.autograd.grad(torch.vmap(row)(q).square().sum(), q)[0]

    expected = gradient(F.scaled_dot_product_attention)
    torch.testing.assert_close(gradient(tileformer.flash_attention), expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(
        gradient(tileformer.scaled_dot_product_attention), expected, rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize("transform", [torch.func.grad, torch.func.jacrev, torch.func.hessian])
def test_torch_func_says_what_to_use(transform):
    q, k, v = (t.detach() for t in inputs())
    with pytest.raises(NotImplementedError, match=r"torch.func.grad.*torch.autograd.grad"):
        transform(lambda x: tileformer.flash_attention(x, k, v).sum())(q)


@pytest.mark.parametrize("name", ["key", "value", "sinks", "attn_mask"])
def test_tensors_on_meta_are_refused(name):
    q, k, v = (t.detach() for t in inputs())
    tensors = dict(query=q, key=k, value=v, sinks=torch.zeros(4), attn_mask=torch.zeros(33, 50))
    tensors[name] = tensors[name].to("meta")
    with pytest.raises(ValueError, match=r"on the CPU.*meta"):
        tileformer.flash_attention(**tensors)
