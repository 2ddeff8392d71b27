"""The custom operators `torch.ops.tileformer.fused_experts_*`: fake kernels, autocast and autograd.

The operators themselves are C++ (`tileformer._C`). `fused_experts_forward` returns `(out, gate_up)` and is
differentiable; `gate_up` is what the backward would otherwise compute again, and is stored where `store` says
so. `fused_experts_inference` returns `out` alone and has no autograd formula, because the formula costs some
5 us per call even where no gradient is wanted. `fused_experts_explain` returns the plan as text.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from tileformer import _C  # noqa: F401  (registers the operators)

forward = torch.ops.tileformer.fused_experts_forward.default
inference = torch.ops.tileformer.fused_experts_inference.default
backward = torch.ops.tileformer.fused_experts_backward.default
_explain = torch.ops.tileformer.fused_experts_explain.default
_explain_backward = torch.ops.tileformer.fused_experts_backward_explain.default

NO_DOUBLE_BACKWARD = (
    "tileformer.fused_experts has no second derivative (double backward); where gradients of gradients are "
    "needed, loop over the experts with torch.nn.functional.linear, or use "
    "set_experts_implementation('eager') in transformers"
)
NO_FORWARD_MODE = (
    "tileformer.fused_experts has no forward-mode derivative (jvp), but {name} carries a tangent; detach it, "
    "or loop over the experts with torch.nn.functional.linear"
)
NO_CODE_GRADIENT = (
    "tileformer.fused_experts computes no gradients through quantised weights; call it under "
    "torch.no_grad(), or with weights that are not quantised"
)

_NAMES = [argument.name for argument in forward._schema.arguments]
# In the order of the backward's results.
_DIFFERENTIABLE = [
    _NAMES.index(name) for name in ("hidden", "gate_up", "down", "weights", "gate_up_bias", "down_bias")
]


def explain(*arguments) -> str:
    """The plan of a call with these arguments of the operator, and the slower paths that it takes."""
    return bytes(_explain(*arguments).tolist()).decode()


def explain_backward(*arguments) -> str:
    """The same of the backward operator."""
    return bytes(_explain_backward(*arguments).tolist()).decode()


def _check(hidden: torch.Tensor, gate_up: torch.Tensor, down: torch.Tensor, *others) -> None:
    """What fake tensors can get wrong: devices and numbers of dimensions."""
    for tensor in (gate_up, down, *others):
        # With a tensor on meta among them, torch would take the fake kernel, and its memory for results.
        if isinstance(tensor, torch.Tensor) and tensor.device != hidden.device:
            devices = f"{hidden.device} and {tensor.device}"
            raise ValueError(f"tensors on different devices: got {devices}, expected one device")
    for name, tensor, layout in (
        ("hidden", hidden, "[tokens, hidden]"),
        ("gate_up", gate_up, "[experts, 2 * inter, hidden]"),
        ("down", down, "[experts, hidden, inter]"),
    ):
        if tensor.dim() != layout.count(",") + 1:
            raise ValueError(f"{name}: got {tensor.dim()} dimensions, expected {layout}")


@torch.library.register_fake("tileformer::fused_experts_inference")
def fake_inference(hidden: torch.Tensor, gate_up: torch.Tensor, down: torch.Tensor, *others) -> torch.Tensor:
    _check(hidden, gate_up, down, *others)
    return hidden.new_empty(hidden.shape)


@torch.library.register_fake("tileformer::fused_experts_forward")
def fake_forward(
    hidden: torch.Tensor,
    gate_up: torch.Tensor,
    down: torch.Tensor,
    weights: torch.Tensor,
    experts: torch.Tensor,
    *others,
) -> tuple[torch.Tensor, torch.Tensor]:
    _check(hidden, gate_up, down, weights, experts, *others)
    store = others[8] if len(others) > 8 else True
    shape = (experts.shape[0] * experts.shape[1], gate_up.shape[1]) if store else (0, 0)
    return hidden.new_empty(hidden.shape), hidden.new_empty(shape)


def _empty_like_weight(weight: torch.Tensor) -> torch.Tensor:
    """Dense, with the dimension innermost that is in `weight`; as empty_like_weight in csrc."""
    if weight.stride(2) == 1 or weight.shape[2] <= 1 or weight.stride(1) != 1:
        return weight.new_empty(weight.shape)
    return weight.new_empty((weight.shape[0], weight.shape[2], weight.shape[1])).transpose(1, 2)


@torch.library.register_fake("tileformer::fused_experts_backward")
def fake_backward(
    grad_out: torch.Tensor,
    stored: torch.Tensor | None,
    wanted: int,
    hidden: torch.Tensor,
    gate_up: torch.Tensor,
    down: torch.Tensor,
    weights: torch.Tensor,
    experts: torch.Tensor,
    gate_up_bias: torch.Tensor | None = None,
    down_bias: torch.Tensor | None = None,
    *others,
) -> tuple[torch.Tensor, ...]:
    _check(hidden, gate_up, down, weights, experts, gate_up_bias, down_bias, grad_out, stored)
    inputs = (hidden, gate_up, down, weights, gate_up_bias, down_bias)

    def gradient(n: int) -> torch.Tensor:
        like = inputs[n]
        if like is None or not wanted >> n & 1:
            return hidden.new_empty(0)
        return _empty_like_weight(like) if like.dim() == 3 else like.new_empty(like.shape)

    return tuple(gradient(n) for n in range(len(inputs)))


_AUTOCAST = torch._C.DispatchKey.AutocastCPU


def _autocast_rule(op: Callable) -> Callable:
    """Casts hidden and everything that is multiplied with it, as autocast does for linear. Routing weights
    and scales of codes may have any float dtype."""

    cast = {_NAMES.index(name) for name in ("hidden", "gate_up", "down", "gate_up_bias", "down_bias")}

    def to_autocast(tensor: torch.Tensor | None) -> torch.Tensor | None:
        if tensor is not None and tensor.is_floating_point() and tensor.dtype != torch.float64:
            return tensor.to(torch.get_autocast_dtype("cpu"))
        return tensor

    def kernel(*arguments):
        with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(_AUTOCAST)):
            return op(*(to_autocast(a) if i in cast else a for i, a in enumerate(arguments)))

    return kernel


_library = torch.library.Library("tileformer", "IMPL")
for _op in (forward, inference, _explain):
    _library.impl(_op._schema.name.removeprefix("tileformer::"), _autocast_rule(_op), "AutocastCPU")


def _save_for_backward(ctx, inputs: tuple, output: tuple) -> None:
    # torch passes no trailing arguments that have their default value.
    inputs = (*inputs, *(argument.default_value for argument in forward._schema.arguments[len(inputs) :]))
    *inputs, store = inputs
    if not (inputs[1].is_floating_point() and inputs[2].is_floating_point()):
        raise NotImplementedError(NO_CODE_GRADIENT)
    ctx.mark_non_differentiable(output[1])
    ctx.set_materialize_grads(False)
    tensors = [i for i, x in enumerate(inputs) if isinstance(x, torch.Tensor)]
    ctx.tensor_arguments = tensors
    ctx.other_arguments = tuple(None if i in tensors else x for i, x in enumerate(inputs))
    ctx.save_for_backward(*(inputs[i] for i in tensors), *([output[1]] if store else []))


def _backward(ctx, grad_out: torch.Tensor | None, _grad_gate_up) -> tuple:
    needed = ctx.needs_input_grad  # of the arguments that were passed
    grads: list[torch.Tensor | None] = [None] * len(needed)
    wanted = sum(1 << n for n, i in enumerate(_DIFFERENTIABLE) if i < len(needed) and needed[i])
    if grad_out is None or not wanted:
        return tuple(grads)
    tensors = ctx.saved_tensors
    arguments = list(ctx.other_arguments)
    for i, tensor in zip(ctx.tensor_arguments, tensors):
        arguments[i] = tensor
    stored = tensors[-1] if len(tensors) > len(ctx.tensor_arguments) else None
    computed = backward(grad_out, stored, wanted, *arguments)
    for n, i in enumerate(_DIFFERENTIABLE):
        if wanted >> n & 1:
            grads[i] = computed[n]
    return tuple(grads)


def _refuse_double_backward(ctx, *grads):
    raise NotImplementedError(NO_DOUBLE_BACKWARD)


torch.library.register_autograd(
    "tileformer::fused_experts_forward", _backward, setup_context=_save_for_backward
)
torch.library.register_autograd("tileformer::fused_experts_backward", _refuse_double_backward)
