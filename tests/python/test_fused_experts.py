"""tileformer.fused_experts against a loop of torch's operators: values, gradients, layouts, errors."""

from __future__ import annotations

import pytest
import torch
from exact_experts import ACTIVATIONS, exact_experts, inputs

import tileformer

TOLERANCE = {torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 2e-2, torch.float64: 1e-13}


def assert_near(actual: torch.Tensor, exact: torch.Tensor, dtype: torch.dtype) -> None:
    """Within some roundings of the largest element."""
    assert actual.dtype == dtype
    scale = exact.abs().max().clamp(min=1e-3)
    torch.testing.assert_close(actual.double() / scale, exact.double() / scale, rtol=0, atol=TOLERANCE[dtype])


def wide(arguments):
    return tuple(
        t.detach().double().requires_grad_(t.requires_grad) if t.is_floating_point() else t for t in arguments
    )


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("interleaved", [False, True])
def test_values_and_gradients(dtype, activation, interleaved):
    arguments, biases = inputs(dtype=dtype, bias=True, sentinels=True, grad=True)
    options = {"activation": activation, "interleaved": interleaved, "limit": 3.0}
    exact_arguments, exact_biases = wide(arguments), dict(zip(biases, wide(biases.values())))
    exact = exact_experts(*exact_arguments, **exact_biases, **options)
    grad = torch.randn(exact.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64).to(dtype)
    exact.backward(grad.double())
    for recompute in (False, True):
        out = tileformer.fused_experts(*arguments, **biases, **options, recompute=recompute)
        assert_near(out, exact, dtype)
        out.backward(grad)
        for tensor, wanted in zip(
            (*arguments[:4], *biases.values()), (*exact_arguments[:4], *exact_biases.values())
        ):
            assert_near(tensor.grad, wanted.grad, dtype)
            tensor.grad = None
    with torch.no_grad():
        assert torch.equal(tileformer.fused_experts(*arguments, **biases, **options), out)


def test_gradcheck():
    arguments, biases = inputs(5, 2, 3, 4, 3, dtype=torch.float64, bias=True, sentinels=True, grad=True)
    *tensors, experts = arguments

    def function(hidden, gate_up, down, weights, gate_up_bias, down_bias):
        return tileformer.fused_experts(
            hidden, gate_up, down, weights, experts, gate_up_bias=gate_up_bias, down_bias=down_bias
        )

    assert torch.autograd.gradcheck(function, (*tensors, *biases.values()))


def test_transposed_storage_is_read_where_it_lies():
    (hidden, gate_up, down, weights, experts), _ = inputs(grad=True)
    exact = tileformer.fused_experts(hidden, gate_up, down, weights, experts)
    wanted = torch.autograd.grad(exact.square().sum(), (gate_up, down))
    across = [t.detach().transpose(1, 2).contiguous().requires_grad_() for t in (gate_up, down)]
    views = [t.transpose(1, 2) for t in across]
    text = tileformer.explain(tileformer.fused_experts, hidden, *views, weights, experts)
    assert "copied" not in text
    out = tileformer.fused_experts(hidden, *views, weights, experts)
    torch.testing.assert_close(out, exact, rtol=1e-5, atol=1e-5)
    grads = torch.autograd.grad(out.square().sum(), across)
    for grad, of in zip(grads, wanted):
        assert grad.is_contiguous()  # no copy between the operator's result and the parameter's layout
        torch.testing.assert_close(grad.transpose(1, 2), of, rtol=1e-4, atol=1e-5)


def test_any_strides():
    (hidden, gate_up, down, weights, experts), _ = inputs()
    exact = tileformer.fused_experts(hidden, gate_up, down, weights, experts)
    apart = [
        torch.repeat_interleave(t, 2, dim=-1)[..., ::2] for t in (hidden, gate_up, down, weights, experts)
    ]
    assert torch.equal(tileformer.fused_experts(*apart), exact)
    text = tileformer.explain(tileformer.fused_experts, *apart)
    assert "copied because their last dimension is not adjacent in memory: hidden, gate_up, down" in text


@pytest.mark.parametrize("index", [torch.int32, torch.int64])
@pytest.mark.parametrize("weight", [torch.float32, torch.bfloat16, torch.float64])
def test_dtypes_of_the_routing(index, weight):
    (hidden, gate_up, down, weights, experts), _ = inputs()
    weights = weights.to(weight).requires_grad_()
    out = tileformer.fused_experts(hidden, gate_up, down, weights, experts.to(index))
    assert_near(out, exact_experts(hidden, gate_up, down, weights.float(), experts), torch.float32)
    out.sum().backward()
    assert weights.grad.dtype == weight


def test_slots_without_expert_have_no_influence():
    (hidden, gate_up, down, weights, experts), _ = inputs(sentinels=True)
    nobody = (experts < 0) | (experts >= 5)
    weights = weights.masked_fill(nobody, float("nan")).requires_grad_()
    out = tileformer.fused_experts(hidden, gate_up, down, weights, experts)
    out.sum().backward()
    assert out.isfinite().all() and torch.equal(weights.grad[nobody], torch.zeros(int(nobody.sum())))


def test_only_the_wanted_gradients_are_computed():
    arguments, _ = inputs()
    for n in range(4):
        tensors = [t.clone().requires_grad_(i == n) if i < 4 else t for i, t in enumerate(arguments)]
        every = [t.clone().requires_grad_() if i < 4 else t for i, t in enumerate(arguments)]
        tileformer.fused_experts(*tensors).square().sum().backward()
        tileformer.fused_experts(*every).square().sum().backward()
        assert torch.equal(tensors[n].grad, every[n].grad)
        assert all(tensors[i].grad is None for i in range(4) if i != n)


def test_no_tokens_keep_the_graph():
    arguments, _ = inputs(0, grad=True)
    out = tileformer.fused_experts(*arguments)
    assert out.shape == (0, 24) and out.requires_grad
    out.sum().backward()
    assert torch.equal(arguments[1].grad, torch.zeros_like(arguments[1]))
    assert arguments[0].grad.shape == (0, 24)


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_gradient_checkpointing(use_reentrant):
    arguments, _ = inputs(grad=True)
    wanted = torch.autograd.grad(tileformer.fused_experts(*arguments).square().sum(), arguments[:4])
    out = torch.utils.checkpoint.checkpoint(tileformer.fused_experts, *arguments, use_reentrant=use_reentrant)
    out.square().sum().backward()
    for tensor, of in zip(arguments, wanted):
        assert torch.equal(tensor.grad, of)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast(dtype):
    arguments, biases = inputs(bias=True, grad=True)
    with torch.autocast("cpu", dtype=dtype):
        out = tileformer.fused_experts(*arguments, **biases)
    assert out.dtype == dtype
    cast = [t.detach().to(dtype) if i < 3 else t.detach() for i, t in enumerate(arguments)]
    assert torch.equal(
        out, tileformer.fused_experts(*cast, **{n: b.detach().to(dtype) for n, b in biases.items()})
    )
    out.float().sum().backward()
    assert all(t.grad.dtype == torch.float32 for t in (*arguments[:4], *biases.values()))


def test_shared_expert():
    (hidden, gate_up, down, weights, experts), _ = inputs(grad=True)
    shared_gate_up, shared_down = (
        torch.randn(14, 24).div(5).requires_grad_(),
        torch.randn(24, 7).requires_grad_(),
    )
    shared_weight = torch.rand(21, 1, requires_grad=True)
    out = tileformer.fused_experts(
        hidden,
        gate_up,
        down,
        weights,
        experts,
        shared_gate_up=shared_gate_up,
        shared_down=shared_down,
        shared_weight=shared_weight,
    )
    gate, up = (hidden @ shared_gate_up.T).chunk(2, dim=-1)
    shared = (torch.nn.functional.silu(gate) * up) @ shared_down.T * shared_weight
    exact = exact_experts(hidden, gate_up, down, weights, experts) + shared
    assert_near(out, exact, torch.float32)
    tensors = (hidden, shared_gate_up, shared_down, shared_weight)
    for is_, wanted in zip(
        torch.autograd.grad(out.square().sum(), tensors), torch.autograd.grad(exact.square().sum(), tensors)
    ):
        torch.testing.assert_close(is_, wanted, rtol=1e-4, atol=1e-4)
    with pytest.raises(ValueError, match=r"shared_down: got None, expected \[hidden, shared_inter\]"):
        tileformer.fused_experts(hidden, gate_up, down, weights, experts, shared_gate_up=shared_gate_up)
    with pytest.raises(ValueError, match=r"shared_weight: got shape \[20\], expected \[21\] or \[21, 1\]"):
        tileformer.fused_experts(
            hidden,
            gate_up,
            down,
            weights,
            experts,
            shared_gate_up=shared_gate_up,
            shared_down=shared_down,
            shared_weight=torch.ones(20),
        )


ERRORS = {
    r"activation: got 'relu', expected one of silu, gelu, gelu_tanh, swiglu_oai": lambda *a: (
        tileformer.fused_experts(*a, activation="relu")
    ),
    r"hidden: got 1 dimensions, expected 2 \[tokens, hidden\]": lambda h, *a: tileformer.fused_experts(
        h[0], *a
    ),
    r"gate_up: got torch.int8, expected a float dtype, or pack_experts": lambda h, g, *a: (
        tileformer.fused_experts(h, g.to(torch.int8), *a)
    ),
    r"gate_up: got dtype bfloat16, expected float32 as hidden": lambda h, g, *a: tileformer.fused_experts(
        h, g.bfloat16(), *a
    ),
    r"down: got None, expected a tensor": lambda h, g, d, *a: tileformer.fused_experts(h, g, None, *a),
    r"down: got shape \[5, 24, 11\], expected \[5, 24, 12\]": lambda h, g, d, *a: tileformer.fused_experts(
        h, g, d[..., 1:].contiguous(), *a
    ),
    r"experts: got 6 in token 2, slot 1, expected 0 to 4, or -1 or 5 for no expert": lambda *a: (
        tileformer.fused_experts(*a[:4], a[4].index_put((torch.tensor(2), torch.tensor(1)), torch.tensor(6)))
    ),
    r"weights: got shape \[20, 2\], expected \[21, 2\]": lambda h, g, d, w, e: tileformer.fused_experts(
        h, g, d, w[1:], e
    ),
    r"limit: got 0, expected a number above 0": lambda *a: tileformer.fused_experts(*a, limit=0.0),
    r"tensors on different devices: got cpu and meta": lambda h, g, *a: tileformer.fused_experts(
        h, g.to("meta"), *a
    ),
}


@pytest.mark.parametrize("message", ERRORS)
def test_errors_name_the_argument(message):
    arguments, _ = inputs()
    with pytest.raises(ValueError, match=message):
        ERRORS[message](*arguments)


def test_derivatives_that_are_not_there():
    arguments, _ = inputs(grad=True)
    out = tileformer.fused_experts(*arguments)
    (grad,) = torch.autograd.grad(out.square().sum(), arguments[0], create_graph=True)
    with pytest.raises(NotImplementedError, match="no second derivative"):
        grad.sum().backward()
    with pytest.raises(NotImplementedError, match=r"cannot be differentiated by torch\.func\.grad"):
        torch.func.grad(lambda h: tileformer.fused_experts(h, *arguments[1:]).sum())(arguments[0])
    with (
        pytest.raises(NotImplementedError, match="no forward-mode derivative"),
        torch.autograd.forward_ad.dual_level(),
    ):
        dual = torch.autograd.forward_ad.make_dual(arguments[0].detach(), torch.ones(21, 24))
        tileformer.fused_experts(dual, *arguments[1:])


def test_explain_names_the_plan():
    arguments, _ = inputs(grad=True)
    text = tileformer.explain(lambda: tileformer.fused_experts(*arguments).sum().backward())
    assert "tileformer::fused_experts_forward" in text and "tileformer::fused_experts_backward" in text
    assert text.count(f"isa {tileformer.isa()}") == 2
