"""route: against its definition in torch, gradients, capacities, what torch asks of an operator."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from plain_route import plain_route

import tileformer
from tileformer import route

OPTIONS = {
    "mixtral": {},
    "all_experts": dict(renormalize=False, scale=2.0),
    "sigmoid": dict(scoring="sigmoid", renormalize=False),
    "groups": dict(num_groups=4, top_groups=2),
    "bias": dict(bias=torch.linspace(0.1, -0.1, 16, dtype=torch.float64)),
    "deepseek": dict(
        scoring="sigmoid",
        bias=torch.linspace(-0.3, 0.3, 16, dtype=torch.float64),
        num_groups=4,
        top_groups=2,
        scale=2.5,
    ),
    "first_tokens": dict(capacity=3),
    "best_tokens": dict(capacity=3, drop="score", renormalize=False),
    "best_sigmoid": dict(capacity=2, drop="score", scoring="sigmoid"),
}


def logits_of(tokens=12, experts=16, dtype=torch.float64, seed=0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(tokens, experts, generator=generator, dtype=torch.float64).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64], ids=str)
@pytest.mark.parametrize("name", OPTIONS)
def test_values_and_gradients(name, dtype):
    options = OPTIONS[name]
    logits = logits_of(dtype=dtype).requires_grad_()
    exact = logits.detach().double().requires_grad_()
    weights, experts = route(logits, 3, **options)
    expected, expected_experts = plain_route(exact, 3, **options)
    precise = torch.float64 if dtype == torch.float64 else torch.float32
    assert weights.dtype == precise and experts.dtype == torch.int32
    assert torch.equal(experts.long(), expected_experts)
    torch.testing.assert_close(weights.double(), expected.detach(), rtol=2e-6, atol=1e-9)
    upstream = torch.randn(weights.shape, dtype=torch.float64)
    weights.backward(upstream.to(precise))
    expected.backward(upstream)
    assert logits.grad.dtype == dtype
    tolerance = {torch.float32: 1e-6, torch.bfloat16: 4e-3, torch.float16: 5e-4, torch.float64: 1e-12}[dtype]
    torch.testing.assert_close(logits.grad.double(), exact.grad, rtol=tolerance, atol=tolerance / 4)


@pytest.mark.parametrize("name", OPTIONS)
def test_gradcheck(name):
    logits = logits_of().requires_grad_()
    assert torch.autograd.gradcheck(lambda x: route(x, 3, **OPTIONS[name])[0], (logits,))


@st.composite
def problems(draw):
    groups = draw(st.integers(1, 6))
    experts = groups * draw(st.integers(1, 12))
    top_groups = draw(st.integers(1, groups))
    return {
        "tokens": draw(st.integers(0, 9)),
        "experts": experts,
        "top_k": draw(st.integers(1, experts // groups * top_groups)),
        "seed": draw(st.integers(0, 99)),
        "options": dict(
            scoring=draw(st.sampled_from(["softmax", "sigmoid"])),
            num_groups=groups,
            top_groups=top_groups,
            renormalize=draw(st.booleans()),
            scale=draw(st.sampled_from([1.0, 0.5, 16.0])),
            capacity=draw(st.none() | st.integers(0, 5)),
            drop=draw(st.sampled_from(["position", "score"])),
        ),
    }


@given(problems())
@settings(max_examples=150, deadline=None)
def test_any_sizes(problem):
    logits = logits_of(problem["tokens"], problem["experts"], torch.float32, problem["seed"])
    weights, experts = route(logits, problem["top_k"], **problem["options"])
    expected, expected_experts = plain_route(logits.double(), problem["top_k"], **problem["options"])
    assert torch.equal(experts.long(), expected_experts)
    torch.testing.assert_close(weights.double(), expected, rtol=4e-6, atol=1e-9)


def test_ties_go_to_the_lower_index():
    _, experts = route(torch.tensor([[1.0, 2.0, 2.0, 1.0, 2.0], [0.0] * 5]), 4)
    assert experts.tolist() == [[1, 2, 4, 0], [0, 1, 2, 3]]


@pytest.mark.parametrize("scoring", ["softmax", "sigmoid"])
def test_nan_stays_in_its_row(scoring):
    logits = logits_of(dtype=torch.float32)
    clean = route(logits, 3, scoring=scoring)
    logits[5, 15] = math.nan
    logits.requires_grad_()
    weights, experts = route(logits, 3, scoring=scoring)
    others = [t for t in range(12) if t != 5]
    assert torch.equal(weights[others], clean[0][others]) and torch.equal(experts[others], clean[1][others])
    assert weights[5].isnan().all() and experts[5].tolist() == [0, 1, 2]
    weights.sum().backward()
    assert logits.grad[5].isnan().all() and logits.grad[others].isfinite().all()


def test_infinite_logits():
    logits = torch.full((2, 4), -math.inf)
    logits[0, 2] = 3
    logits[1, 1:3] = torch.tensor([0.0, math.log(3)])
    weights, experts = route(logits, 2)
    assert experts.tolist() == [[2, 0], [2, 1]]
    torch.testing.assert_close(weights, torch.tensor([[1.0, 0.0], [0.75, 0.25]]))


@pytest.mark.parametrize("drop", ["position", "score"])
def test_capacity(drop):
    logits = logits_of(40, 4, torch.float32)
    weights, experts = route(logits, 2, capacity=7, drop=drop)
    free_weights, free_experts = route(logits, 2)
    kept = experts >= 0
    # A token keeps the weights that it had beside what was dropped.
    assert torch.equal(weights, torch.where(kept, free_weights, 0))
    assert torch.equal(experts, torch.where(kept, free_experts, -1))
    for e in range(4):
        wanted, served = free_experts == e, experts == e
        assert served.sum() == min(7, wanted.sum())
        if drop == "position":
            assert served.any(1).nonzero().max() <= wanted.any(1).nonzero()[:7].max()
        elif wanted.sum() > 7:
            assert free_weights[served].min() >= free_weights[wanted & ~served].max()
    factor = route(logits, 2, capacity_factor=7 / 20, drop=drop)
    assert torch.equal(factor[0], weights) and torch.equal(factor[1], experts)


def test_dropped_slots_have_no_gradient():
    logits = logits_of(40, 4, torch.float32).requires_grad_()
    weights, experts = route(logits, 2, capacity=7)
    dropped = experts < 0
    upstream = torch.where(dropped, math.nan, 1.0)
    weights.backward(upstream)
    assert logits.grad.isfinite().all()
    assert (logits.grad[dropped.all(1)] == 0).all() and dropped.all(1).any()


def test_strides_and_broadcast_gradients():
    logits = logits_of(dtype=torch.float32)
    expected = route(logits, 3)
    for view in (logits.t().contiguous().t(), torch.cat((logits, logits), 1)[:, :16]):
        leaf = view.detach().requires_grad_()
        weights, experts = route(leaf, 3)
        assert torch.equal(weights, expected[0]) and torch.equal(experts, expected[1])
        (gradient,) = torch.autograd.grad(weights[:, 1].sum(), leaf)
        assert gradient.shape == logits.shape and gradient.abs().sum() > 0
    summed = logits.clone().requires_grad_()
    route(summed, 3, scoring="sigmoid", renormalize=False)[0].sum().backward()  # a gradient of stride 0
    chosen = torch.zeros_like(logits).scatter(1, route(logits, 3, scoring="sigmoid")[1].long(), 1)
    s = logits.sigmoid()
    torch.testing.assert_close(summed.grad, chosen * s * (1 - s))


def test_threads_do_not_change_bits():
    logits = logits_of(3000, 64, torch.bfloat16)
    threads = torch.get_num_threads()
    try:
        results = []
        for n in (1, 2):
            torch.set_num_threads(n)
            leaf = logits.clone().requires_grad_()
            weights, experts = route(leaf, 6, capacity=300, drop="score")
            weights.square().sum().backward()
            results.append((weights.detach(), experts, leaf.grad))
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(a, b) for a, b in zip(*results))


def test_no_tokens_keep_the_graph():
    logits = torch.zeros(0, 8, requires_grad=True)
    for options in ({}, dict(capacity_factor=1.0)):
        weights, experts = route(logits, 2, **options)
        assert weights.shape == experts.shape == (0, 2)
        weights.sum().backward()
        assert logits.grad.shape == (0, 8)


X = torch.randn(4, 12)
ERRORS = {
    "rank": (lambda: route(X[0], 2), "logits: got 1 dimensions, expected 2"),
    "dtype": (lambda: route(X.int(), 2), "logits: got dtype int32"),
    "experts": (lambda: route(torch.zeros(1, 1025), 2), "logits: got 1025 experts, expected 1 to 1024"),
    "k_zero": (lambda: route(X, 0), "top_k: got 0, expected 1 to 12"),
    "k_many": (lambda: route(X, 13), "top_k: got 13, expected 1 to 12"),
    "k_groups": (lambda: route(X, 5, num_groups=3), "top_k: got 5, expected 1 to 4"),
    "scoring": (lambda: route(X, 2, scoring="relu"), "scoring: got 'relu', expected 'softmax' or 'sigmoid'"),
    "drop": (lambda: route(X, 2, drop="last"), "drop: got 'last', expected 'position' or 'score'"),
    "num_groups": (lambda: route(X, 2, num_groups=5), "num_groups: got 5, expected a divisor of the 12"),
    "no_groups": (lambda: route(X, 2, num_groups=0), "num_groups: got 0"),
    "top_groups": (lambda: route(X, 2, num_groups=3, top_groups=4), "top_groups: got 4, expected 1 to 3"),
    "bias_shape": (lambda: route(X, 2, bias=torch.zeros(11)), r"bias: got shape \[11\], expected \[12\]"),
    "bias_dtype": (lambda: route(X, 2, bias=torch.zeros(12).long()), "bias: got dtype int64"),
    "bias_nan": (lambda: route(X, 2, bias=torch.full((12,), math.nan)), "bias: got nan for expert 0"),
    "bias_grad": (lambda: route(X, 2, bias=torch.zeros(12, requires_grad=True)), "bias: .*requires grad"),
    "scale": (lambda: route(X, 2, scale=0.0), "scale: got 0, expected a finite float32 above 0"),
    "capacity": (lambda: route(X, 2, capacity=-1), "capacity: got -1, expected 0 or more"),
    "factor": (lambda: route(X, 2, capacity_factor=math.nan), "capacity_factor: got nan"),
    "both": (lambda: route(X, 2, capacity=1, capacity_factor=1.0), "capacity_factor: got one beside"),
    "device": (lambda: route(X.to("meta"), 2, bias=torch.zeros(12)), "on the CPU"),
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors(name):
    call, message = ERRORS[name]
    with pytest.raises(ValueError, match=message):
        call()


def test_unsupported_derivatives_are_refused():
    logits = logits_of().requires_grad_()
    weights, _ = route(logits, 3)
    (gradient,) = torch.autograd.grad(weights.square().sum(), logits, create_graph=True)
    with pytest.raises(NotImplementedError, match="second derivative"):
        gradient.sum().backward()
    with pytest.raises(NotImplementedError, match=r"jvp.*logits carries a tangent"):
        torch.func.jvp(lambda x: route(x, 3)[0], (logits.detach(),), (torch.ones_like(logits),))
    with pytest.raises(NotImplementedError, match=r"torch\.func\.grad"):
        torch.func.grad(lambda x: route(x, 3)[0].sum())(logits.detach())


def test_autocast_leaves_logits_as_they_are():
    logits = logits_of(dtype=torch.float32)
    expected = route(logits, 3)
    with torch.autocast("cpu", torch.bfloat16):
        weights, experts = route(logits, 3)
    assert torch.equal(weights, expected[0]) and torch.equal(experts, expected[1])


@pytest.mark.slow
def test_opcheck():
    op = torch.ops.tileformer.route.default
    for dtype in (torch.float32, torch.bfloat16, torch.float64):
        logits = logits_of(dtype=dtype).requires_grad_()
        torch.library.opcheck(op, (logits, 3))
        torch.library.opcheck(op, (logits, 3, torch.zeros(16), 1, 4, 2, False, 2.0, 5, 1))
    weights, experts, chosen = op(logits, 3, None, 0, 1, 1, True, 1.0, 5)
    backward = torch.ops.tileformer.route_backward.default
    torch.library.opcheck(backward, (weights.detach(), logits.detach(), experts, chosen, 0, True, 1.0))


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compile(backend):
    torch._dynamo.reset()

    def step(logits, options):
        weights, experts = tileformer.route(logits, 3, **options)
        return weights.square().sum() + experts.sum(), weights

    compiled = torch.compile(step, fullgraph=True, backend=backend, dynamic=True)
    for options in ({}, OPTIONS["deepseek"], dict(capacity_factor=1.0, drop="score")):
        for tokens in (12, 31):
            leaves = [logits_of(tokens, dtype=torch.float32).requires_grad_() for _ in range(2)]
            results = [f(leaf, options) for f, leaf in zip((step, compiled), leaves)]
            assert torch.equal(results[0][1], results[1][1])
            for loss, _ in results:
                loss.backward()
            torch.testing.assert_close(leaves[0].grad, leaves[1].grad)
