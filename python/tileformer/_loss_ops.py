"""`torch.ops.tileformer.linear_cross_entropy`: the operator behind `tileformer.linear_cross_entropy`.

Its forward computes the gradients in the same pass as the loss, as those of an incoming gradient of 1, and
hands them to autograd in fp32 as extra outputs that are not differentiable. Backward multiplies them by what
came in and rounds, once. With reduction "none" every row has an incoming gradient of its own, which the sum
over rows in weight's gradient cannot take up afterwards: there forward computes none, and backward makes the
pass again with each row's gradient scaled by its own (four products instead of three, and no memory between
the two). The same second pass serves gradients that the forward was not asked for.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from tileformer._loss_pass import LossOptions, loss_pass

MEAN, SUM, NONE = 0, 1, 2

_SCALARS = "int ignore_index, float label_smoothing, float z_loss, float softcap, int reduction"
_library = torch.library.Library("tileformer", "FRAGMENT")
_library.define(
    "linear_cross_entropy(Tensor hidden, Tensor weight, Tensor target, Tensor? bias, "
    f"{_SCALARS}, bool want_hidden, bool want_weight, bool want_bias) "
    "-> (Tensor loss, Tensor grad_hidden, Tensor grad_weight, Tensor grad_bias)"
)
_library.define(
    "linear_cross_entropy_backward(Tensor grad_loss, Tensor hidden, Tensor weight, Tensor target, "
    f"Tensor? bias, Tensor[] computed, {_SCALARS}, bool want_hidden, bool want_weight, bool want_bias) "
    "-> (Tensor grad_hidden, Tensor grad_weight, Tensor grad_bias)"
)
forward = torch.ops.tileformer.linear_cross_entropy.default
_backward = torch.ops.tileformer.linear_cross_entropy_backward.default


def _precise(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32


def _forward_kernel(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    target: torch.Tensor,
    bias: torch.Tensor | None,
    ignore_index: int,
    label_smoothing: float,
    z_loss: float,
    softcap: float,
    reduction: int,
    *want: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    options = LossOptions(ignore_index, label_smoothing, z_loss, softcap)
    if reduction == NONE:
        want = (False, False, False)
    loss, gradients = loss_pass(hidden, weight, target, bias, options, want=want)
    if reduction != NONE:
        loss = loss.sum()
    if reduction == MEAN:
        loss = loss / (target != ignore_index).sum()
    empty = loss.new_empty
    return (
        loss,
        empty(0) if gradients.hidden is None else gradients.hidden,
        empty(0) if gradients.weight is None else gradients.weight,
        empty(0) if gradients.bias is None else gradients.bias,
    )


def _scaled(gradient: torch.Tensor, factor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """(gradient * factor) in dtype; in pieces, so that no fp32 tensor of the size of weight is added."""
    if dtype == gradient.dtype:
        return gradient * factor
    out = torch.empty_like(gradient, dtype=dtype)
    for piece, into in zip(gradient.split(4096), out.split(4096)):
        into.copy_(piece * factor)
    return out


def _backward_kernel(
    grad_loss: torch.Tensor,
    hidden: torch.Tensor,
    weight: torch.Tensor,
    target: torch.Tensor,
    bias: torch.Tensor | None,
    computed: list[torch.Tensor],
    ignore_index: int,
    label_smoothing: float,
    z_loss: float,
    softcap: float,
    reduction: int,
    *want: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    factor = grad_loss.to(_precise(hidden.dtype))
    if reduction == MEAN:  # no row counted: the loss is nan, the gradients 0, as torch has it
        factor = factor / (target != ignore_index).sum().clamp(min=1)
    inputs = (hidden, weight, bias)
    # An empty one among those wanted was not computed; if the input itself is empty either way will do.
    if reduction != NONE and all(not w or c.shape == t.shape for w, c, t in zip(want, computed, inputs)):
        gradients = computed
    else:
        options = LossOptions(ignore_index, label_smoothing, z_loss, softcap)
        row_scale = factor.expand(target.shape)
        _, found = loss_pass(hidden, weight, target, bias, options, want=want, row_scale=row_scale)
        gradients, factor = (found.hidden, found.weight, found.bias), factor.new_ones(())
    return tuple(
        _scaled(g, factor, t.dtype) if w else hidden.new_empty(0) for w, g, t in zip(want, gradients, inputs)
    )


_library.impl("linear_cross_entropy", _forward_kernel, "CPU")
_library.impl("linear_cross_entropy_backward", _backward_kernel, "CPU")


@torch.library.register_fake("tileformer::cross_entropy_rows_")
def _(logits, target, loss, *_options) -> None:
    return None


@torch.library.register_fake("tileformer::linear_cross_entropy")
def _(hidden, weight, target, bias, ignore_index, label_smoothing, z_loss, softcap, reduction, *want):
    dtype = _precise(hidden.dtype)
    loss = hidden.new_empty(target.shape if reduction == NONE else (), dtype=dtype)
    inputs = (hidden, weight, bias)
    return loss, *(
        hidden.new_empty(t.shape if w and reduction != NONE else (0,), dtype=dtype)
        for w, t in zip(want, inputs)
    )


@torch.library.register_fake("tileformer::linear_cross_entropy_backward")
def _(grad_loss, hidden, weight, target, bias, computed, *options):
    want = options[-3:]
    return tuple(
        t.new_empty(t.shape) if w else hidden.new_empty(0) for w, t in zip(want, (hidden, weight, bias))
    )


def _setup(ctx, inputs: tuple, output: tuple) -> None:
    hidden, weight, target, bias, *options = inputs
    ctx.options = options[:5]
    ctx.has_bias = bias is not None
    ctx.mark_non_differentiable(*output[1:])
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(hidden, weight, target, *output[1:], *([bias] if ctx.has_bias else []))


def _gradients(ctx, grad_loss: torch.Tensor | None, *_others) -> tuple:
    none = (None,) * 12
    if grad_loss is None:
        return none
    hidden, weight, target, *computed = ctx.saved_tensors
    bias = computed.pop() if ctx.has_bias else None
    want = (ctx.needs_input_grad[0], ctx.needs_input_grad[1], ctx.needs_input_grad[3])
    found = _backward(grad_loss, hidden, weight, target, bias, computed, *ctx.options, *want)
    grad_hidden, grad_weight, grad_bias = (g if w else None for g, w in zip(found, want))
    return grad_hidden, grad_weight, None, grad_bias, *none[4:]


def _no_second_derivative(ctx, *grads):
    raise NotImplementedError(
        "tileformer.linear_cross_entropy has no second derivative (double backward); use "
        "torch.nn.functional.linear and cross_entropy where one is needed"
    )


torch.library.register_autograd("tileformer::linear_cross_entropy", _gradients, setup_context=_setup)
torch.library.register_autograd("tileformer::linear_cross_entropy_backward", _no_second_derivative)


_AUTOCAST = torch._C.DispatchKey.AutocastCPU


def _under_autocast(op: Callable, cast: tuple[int, ...]) -> Callable:
    """Casts these arguments to the autocast dtype, and keeps autocast away from the products inside."""

    def to_autocast(tensor: torch.Tensor | None) -> torch.Tensor | None:
        if tensor is not None and tensor.dtype != torch.float64:
            return tensor.to(torch.get_autocast_dtype("cpu"))
        return tensor

    def kernel(*arguments):
        with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(_AUTOCAST)):
            return op(*(to_autocast(a) if i in cast else a for i, a in enumerate(arguments)))

    return kernel


_library.impl("linear_cross_entropy", _under_autocast(forward, (0, 1, 3)), "AutocastCPU")
_library.impl("linear_cross_entropy_backward", _under_autocast(_backward, ()), "AutocastCPU")
