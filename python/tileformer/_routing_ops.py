"""`torch.ops.tileformer.route`: fake kernels and autograd. The operators themselves are C++.

`route` returns (weights, experts, chosen). chosen is the choice before slots were dropped, which backward
needs because weights were renormalized before; it is empty where there is no capacity.
"""

from __future__ import annotations

import torch

from tileformer import _C  # noqa: F401  (registers the operators)
from tileformer._ops import _check_devices

route = torch.ops.tileformer.route.default
_route_backward = torch.ops.tileformer.route_backward.default

SCORING = {"softmax": 0, "sigmoid": 1}
DROP = {"position": 0, "score": 1}

_DEFAULTS = [argument.default_value for argument in route._schema.arguments]


def check_rank(name: str, tensor: torch.Tensor, layout: str) -> None:
    """ValueError unless the tensor has two dimensions."""
    if tensor.dim() != 2:
        raise ValueError(f"{name}: got {tensor.dim()} dimensions, expected 2 {layout}")


@torch.library.register_fake("tileformer::route")
def _(
    logits: torch.Tensor,
    top_k: int,
    bias: torch.Tensor | None = None,
    scoring: int = 0,
    num_groups: int = 1,
    top_groups: int = 1,
    renormalize: bool = True,
    scale: float = 1.0,
    capacity: int | None = None,
    drop: int = 0,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    _check_devices(logits, bias)
    check_rank("logits", logits, "[tokens, experts]")
    slots = (logits.shape[0], top_k)
    dtype = torch.float64 if logits.dtype == torch.float64 else torch.float32
    return (
        logits.new_empty(slots, dtype=dtype),
        logits.new_empty(slots, dtype=torch.int32),
        logits.new_empty(0 if capacity is None else slots, dtype=torch.int32),
    )


@torch.library.register_fake("tileformer::route_backward")
def _(
    grad_weights: torch.Tensor,
    logits: torch.Tensor,
    experts: torch.Tensor,
    chosen: torch.Tensor,
    scoring: int,
    renormalize: bool,
    scale: float,
) -> torch.Tensor:
    _check_devices(logits, grad_weights, experts, chosen)
    return logits.new_empty(logits.shape)


def _setup(ctx, inputs: tuple, output: tuple) -> None:
    # torch passes no trailing arguments that have their default value.
    inputs = (*inputs, *_DEFAULTS[len(inputs) :])
    _, experts, chosen = output
    ctx.options = (inputs[3], inputs[6], inputs[7])
    ctx.mark_non_differentiable(experts, chosen)
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(inputs[0], experts, chosen)


def _gradients(ctx, grad_weights: torch.Tensor | None, *_indices) -> tuple:
    none = (None,) * (len(ctx.needs_input_grad) - 1)
    if grad_weights is None or not ctx.needs_input_grad[0]:
        return None, *none
    return _route_backward(grad_weights, *ctx.saved_tensors, *ctx.options), *none


def _no_second_derivative(ctx, *grads):
    raise NotImplementedError(
        "tileformer.route has no second derivative (double backward); use torch.softmax and topk where one "
        "is needed"
    )


torch.library.register_autograd("tileformer::route", _gradients, setup_context=_setup)
torch.library.register_autograd("tileformer::route_backward", _no_second_derivative)
