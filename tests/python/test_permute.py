"""permute_tokens and unpermute_tokens: order, sums, gradients, what torch asks of an operator."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tileformer import permute_tokens, route, unpermute_tokens

DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float64]
ROUNDING = {torch.float32: 1e-6, torch.bfloat16: 5e-3, torch.float16: 6e-4, torch.float64: 1e-12}


def problem(tokens=9, hidden=20, count=5, k=3, dtype=torch.float64, seed=0):
    """Tokens, experts with some that are none, weights."""
    generator = torch.Generator().manual_seed(seed)
    experts = torch.randint(-1, count + 1, (tokens, k), generator=generator)
    weights = torch.randn(tokens, k, generator=generator, dtype=torch.float64)
    precise = torch.float64 if dtype == torch.float64 else torch.float32
    hidden = torch.randn(tokens, hidden, generator=generator, dtype=torch.float64)
    return hidden.to(dtype), experts, weights.to(precise)


def plain_permute(tokens, experts, count):
    flat = experts.reshape(-1)
    valid = (flat >= 0) & (flat < count)
    order = torch.where(valid, flat, count).argsort(stable=True)
    kept = valid[order]
    rows = tokens[order // experts.shape[1]] * kept[:, None]
    return rows, torch.bincount(flat[valid], minlength=count), torch.where(kept, order, -1)


def plain_unpermute(rows, source, weights):
    kept = source >= 0
    token, slot = source[kept] // weights.shape[1], source[kept] % weights.shape[1]
    out = rows.new_zeros(weights.shape[0], rows.shape[1])
    return out.index_add(0, token, rows[kept] * weights[token, slot][:, None])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("index", [torch.int32, torch.int64], ids=str)
def test_there_and_back(dtype, index):
    tokens, experts, weights = problem(dtype=dtype)
    leaves = [tokens.clone().requires_grad_(), weights.clone().requires_grad_()]
    rows, counts, source = permute_tokens(leaves[0], experts.to(index), 5)
    expected_rows, expected_counts, expected_source = plain_permute(tokens, experts, 5)
    assert torch.equal(rows, expected_rows) and rows.dtype == dtype
    assert torch.equal(counts, expected_counts) and torch.equal(source, expected_source)
    out = unpermute_tokens(rows, source, leaves[1])
    valid = ((experts >= 0) & (experts < 5)).double()
    exact = [tokens.double().requires_grad_(), weights.double().requires_grad_()]
    expected = exact[0] * (exact[1] * valid).sum(1, keepdim=True)
    assert out.dtype == dtype
    torch.testing.assert_close(out.double(), expected, rtol=ROUNDING[dtype], atol=1e-6)
    upstream = torch.randn(out.shape).to(dtype)
    out.backward(upstream)
    expected.backward(upstream.double())
    for ours, theirs in zip(leaves, exact):
        assert ours.grad.dtype == ours.dtype
        # The gradient of a row is rounded on its way to the token's.
        scale = 4 * theirs.grad.abs().max().item()
        torch.testing.assert_close(ours.grad.double(), theirs.grad, rtol=0, atol=scale * ROUNDING[dtype])


@given(st.integers(0, 12), st.integers(0, 40), st.integers(1, 70), st.integers(0, 7), st.integers(0, 99))
@settings(max_examples=100, deadline=None)
def test_any_sizes(tokens, hidden, count, k, seed):
    x, experts, weights = problem(tokens, hidden, count, k, torch.float32, seed)
    rows, counts, source = permute_tokens(x, experts, count)
    expected = plain_permute(x, experts, count) if k else (rows, torch.zeros(count), source)
    assert torch.equal(rows, expected[0]) and torch.equal(source, expected[2])
    assert torch.equal(counts, expected[1].long())
    processed = torch.randn(rows.shape)
    out = unpermute_tokens(processed, source, weights)
    if k:
        torch.testing.assert_close(out, plain_unpermute(processed, source, weights), rtol=1e-5, atol=1e-5)
    else:
        assert (out == 0).all()


def test_gradcheck():
    tokens, experts, weights = problem(tokens=4, hidden=3, k=2)
    tokens.requires_grad_()
    weights.requires_grad_()
    rows, _, source = permute_tokens(tokens, experts, 5)
    assert torch.autograd.gradcheck(lambda x: permute_tokens(x, experts, 5)[0], (tokens,))
    assert torch.autograd.gradcheck(
        lambda r, w: unpermute_tokens(r, source, w), (rows.detach().requires_grad_(), weights)
    )
    # Copying is linear: its gradient has one, too.
    assert torch.autograd.gradgradcheck(lambda x: permute_tokens(x, experts, 5)[0], (tokens,))


def test_rows_without_a_pair_have_no_influence():
    tokens, experts, weights = problem(dtype=torch.float32)
    rows, _, source = permute_tokens(tokens, experts, 5)
    expected = unpermute_tokens(rows, source, weights)
    spoiled = rows.clone()
    spoiled[source < 0] = math.nan
    spoiled.requires_grad_()
    weights.requires_grad_()
    out = unpermute_tokens(spoiled, source, weights)
    assert torch.equal(out, expected) and (source < 0).any()
    out.sum().backward()
    assert (spoiled.grad[source < 0] == 0).all() and weights.grad.isfinite().all()


def test_a_layer_by_hand():
    """Experts that scale their rows, in the order of experts, with slots that a capacity dropped."""
    tokens, logits, scales = torch.randn(30, 16), torch.randn(30, 6), torch.randn(6)
    weights, experts = route(logits, 2, capacity=6)
    rows, counts, source = permute_tokens(tokens, experts, 6)
    factors = torch.cat((scales.repeat_interleave(counts), torch.full((60 - counts.sum(),), math.nan)))
    out = unpermute_tokens(rows * factors[:, None], source, weights)
    dense = torch.zeros(30, 7).scatter_add(1, experts.long() % 7, weights)[:, :6]
    torch.testing.assert_close(out, tokens * (dense @ scales)[:, None])


def test_strides():
    tokens, experts, weights = problem(dtype=torch.float32)
    expected = permute_tokens(tokens, experts, 5)
    for x in (tokens.t().contiguous().t(), torch.cat((tokens, tokens), 1)[:, :20]):
        for e in (experts, experts.t().contiguous().t()):
            assert all(torch.equal(a, b) for a, b in zip(permute_tokens(x, e, 5), expected))
    rows, _, source = expected
    out = unpermute_tokens(rows, source, weights)
    apart = torch.stack((source, source), 1)[:, 0]
    assert torch.equal(unpermute_tokens(rows.t().contiguous().t(), apart, weights.t().contiguous().t()), out)


def test_threads_do_not_change_bits():
    tokens, experts, weights = problem(2000, 200, 8, 4, torch.bfloat16)
    threads = torch.get_num_threads()
    try:
        results = []
        for n in (1, 2):
            torch.set_num_threads(n)
            leaves = tokens.clone().requires_grad_(), weights.clone().requires_grad_()
            rows, counts, source = permute_tokens(leaves[0], experts, 8)
            out = unpermute_tokens(rows.sin(), source, leaves[1])
            out.float().square().sum().backward()
            results.append((rows, counts, source, out, leaves[0].grad, leaves[1].grad))
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(a, b) for a, b in zip(*results))


def test_no_tokens_keep_the_graph():
    tokens = torch.zeros(0, 4, requires_grad=True)
    rows, counts, source = permute_tokens(tokens, torch.zeros(0, 2, dtype=torch.int32), 3)
    assert rows.shape == (0, 4) and counts.tolist() == [0, 0, 0] and source.shape == (0,)
    unpermute_tokens(rows, source, torch.zeros(0, 2)).sum().backward()
    assert tokens.grad.shape == (0, 4)


X, E, W = torch.randn(4, 6), torch.zeros(4, 2, dtype=torch.int64), torch.ones(4, 2)
ROWS, SOURCE = torch.randn(8, 6), torch.arange(8)
ERRORS = {
    "rank": (lambda: permute_tokens(X[0], E, 3), "tokens: got 1 dimensions, expected 2"),
    "dtype": (lambda: permute_tokens(X.int(), E, 3), "tokens: got dtype int32"),
    "experts_rank": (lambda: permute_tokens(X, E[0], 3), "experts: got 1 dimensions, expected 2"),
    "experts_dtype": (lambda: permute_tokens(X, W, 3), "experts: got dtype float32, expected int32 or int64"),
    "experts_shape": (lambda: permute_tokens(X, E[:3], 3), r"experts: got shape \[3, 2\], expected \[4, 2\]"),
    "index": (lambda: permute_tokens(X, E + 4, 3), "experts: got 4 in token 0, slot 0, expected 0 to 2"),
    "num_experts": (lambda: permute_tokens(X, E, 0), "num_experts: got 0, expected 1 to"),
    "rows_rank": (lambda: unpermute_tokens(ROWS[0], SOURCE, W), "rows: got 1 dimensions, expected 2"),
    "source_shape": (
        lambda: unpermute_tokens(ROWS, SOURCE[:7], W),
        r"source: got shape \[7\], expected \[8\]",
    ),
    "source_dtype": (
        lambda: unpermute_tokens(ROWS, SOURCE.int(), W),
        "source: got dtype int32, expected int64",
    ),
    "source": (lambda: unpermute_tokens(ROWS, SOURCE + 1, W), "source: got 8 in row 7, expected 0 to 7"),
    "twice": (lambda: unpermute_tokens(ROWS, SOURCE % 7, W), "source: got 0 once more in row 7"),
    "weights_rank": (lambda: unpermute_tokens(ROWS, SOURCE, W[0]), "weights: got 1 dimensions, expected 2"),
    "weights_dtype": (lambda: unpermute_tokens(ROWS, SOURCE, W.double()), "weights: got dtype float64"),
    "device": (lambda: permute_tokens(X.to("meta"), E, 3), "on the CPU"),
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors(name):
    call, message = ERRORS[name]
    with pytest.raises(ValueError, match=message):
        call()


def test_unsupported_derivatives_are_refused():
    rows, weights = ROWS.clone().requires_grad_(), W.clone().requires_grad_()
    out = unpermute_tokens(rows, SOURCE, weights)
    (gradient,) = torch.autograd.grad(out.square().sum(), rows, create_graph=True)
    with pytest.raises(NotImplementedError, match="second derivative"):
        gradient.sum().backward()
    with pytest.raises(NotImplementedError, match=r"permute_tokens.*jvp.*tokens carries a tangent"):
        torch.func.jvp(lambda x: permute_tokens(x, E, 3)[0], (X,), (X,))


@pytest.mark.slow
def test_opcheck():
    for dtype in (torch.float32, torch.bfloat16, torch.float64):
        tokens, experts, weights = problem(dtype=dtype)
        tokens.requires_grad_()
        weights.requires_grad_()
        torch.library.opcheck(torch.ops.tileformer.permute_tokens.default, (tokens, experts, 5))
        rows, _, source = (t.detach() for t in permute_tokens(tokens, experts, 5))
        rows.requires_grad_()
        torch.library.opcheck(torch.ops.tileformer.unpermute_tokens.default, (rows, source, weights))
    backward = torch.ops.tileformer.unpermute_tokens_backward.default
    for want in ((True, True), (True, False), (False, True)):
        inputs = (torch.randn(9, 20, dtype=torch.float64), rows.detach(), source, weights.detach(), *want)
        torch.library.opcheck(backward, inputs)


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compile(backend):
    torch._dynamo.reset()

    def step(tokens, experts, weights):
        rows, counts, source = permute_tokens(tokens, experts, 5)
        return unpermute_tokens(rows * 2, source, weights), counts

    compiled = torch.compile(step, fullgraph=True, backend=backend, dynamic=True)
    for tokens in (9, 14):
        x, experts, weights = problem(tokens, dtype=torch.float32)
        leaves = [(x.clone().requires_grad_(), weights.clone().requires_grad_()) for _ in range(2)]
        results = [f(a, experts, b) for f, (a, b) in zip((step, compiled), leaves)]
        for out, _ in results:
            out.sum().backward()
        assert all(torch.equal(a, b) for a, b in zip(*results))
        for a, b in zip(*leaves):
            torch.testing.assert_close(a.grad, b.grad)
