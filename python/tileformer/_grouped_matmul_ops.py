"""The custom operators `torch.ops.tileformer.grouped_matmul*`: fake kernels, autocast and autograd.

Gradients are products of the same kind, so that the formula of the backward operator is made of both
operators again, and a derivative of any order exists.
"""

from __future__ import annotations

import torch

from tileformer import _C  # noqa: F401  (registers the operators)
from tileformer._ops import _autocast_rule, _check_devices

forward = torch.ops.tileformer.grouped_matmul.default
backward = torch.ops.tileformer.grouped_matmul_backward.default

ROWS, WEIGHT, BIAS = 1, 2, 4


def _check_ranks(rows: torch.Tensor, weight: torch.Tensor) -> None:
    for name, tensor, rank, layout in (
        ("rows", rows, 2, "[rows, in]"),
        ("weight", weight, 3, "[experts, out, in]"),
    ):
        if tensor.dim() != rank:
            raise ValueError(f"{name}: got {tensor.dim()} dimensions, expected {rank}, {layout}")


@torch.library.register_fake("tileformer::grouped_matmul")
def _(
    rows: torch.Tensor, weight: torch.Tensor, counts: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Tensor:
    _check_devices(rows, weight, counts, bias)
    _check_ranks(rows, weight)
    return rows.new_empty(rows.shape[0], weight.shape[1])


def _empty_like_weight(weight: torch.Tensor) -> torch.Tensor:
    """Dense, in the order of weight's dimensions in memory."""
    if weight.stride(1) == 1 and weight.stride(2) != 1 and weight.shape[2] > 1:
        return weight.new_empty(weight.shape[0], weight.shape[2], weight.shape[1]).transpose(1, 2)
    return weight.new_empty(weight.shape)


@torch.library.register_fake("tileformer::grouped_matmul_backward")
def _(
    rows: torch.Tensor,
    weight: torch.Tensor,
    counts: torch.Tensor,
    bias: torch.Tensor | None,
    grad_out: torch.Tensor,
    wanted: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    _check_devices(rows, weight, counts, bias, grad_out)
    _check_ranks(rows, weight)
    return (
        rows.new_empty(rows.shape if wanted & ROWS else 0),
        _empty_like_weight(weight) if wanted & WEIGHT else rows.new_empty(0),
        bias.new_empty(bias.shape) if wanted & BIAS and bias is not None else rows.new_empty(0),
    )


_library = torch.library.Library("tileformer", "IMPL")
_library.impl("grouped_matmul", _autocast_rule(forward), "AutocastCPU")


def _save_inputs(ctx, inputs: tuple, output: torch.Tensor) -> None:
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*inputs[:3], inputs[3] if len(inputs) > 3 else None)


def _backward(ctx, grad_out: torch.Tensor | None):
    needed = ctx.needs_input_grad  # of the arguments that were passed
    wanted = ROWS * needed[0] + WEIGHT * needed[1] + BIAS * (len(needed) > 3 and needed[3])
    if grad_out is None or not wanted:
        return (None,) * len(needed)
    grad_rows, grad_weight, grad_bias = backward(*ctx.saved_tensors, grad_out, wanted)
    grads = (
        grad_rows if wanted & ROWS else None,
        grad_weight if wanted & WEIGHT else None,
        None,
        grad_bias if wanted & BIAS else None,
    )
    return grads[: len(needed)]


def _save_backward_inputs(ctx, inputs: tuple, output: tuple) -> None:
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*inputs[:5])
    ctx.wanted = inputs[5]


def _double_backward(ctx, into_rows, into_weight, into_bias):
    """into_*: the gradients that arrive at grad_rows, grad_weight and grad_bias."""
    rows, weight, counts, _, grad_out = ctx.saved_tensors
    needed = ctx.needs_input_grad
    grad = dict.fromkeys(("rows", "weight", "grad_out"))
    # Results that were not wanted are empty, whatever arrives at them.
    into_rows, into_weight, into_bias = (
        into if ctx.wanted & bit else None
        for into, bit in ((into_rows, ROWS), (into_weight, WEIGHT), (into_bias, BIAS))
    )
    if into_bias is not None and into_weight is None:
        into_weight = torch.zeros_like(weight)
    if into_rows is not None:
        if needed[1]:
            grad["weight"] = backward(into_rows, weight, counts, None, grad_out, WEIGHT)[1]
        if needed[4]:
            grad["grad_out"] = forward(into_rows, weight, counts)
    if into_weight is not None:
        if needed[0]:
            grad["rows"] = forward(grad_out, into_weight.transpose(1, 2), counts)
        if needed[4]:
            more = forward(rows, into_weight, counts, into_bias)
            grad["grad_out"] = more if grad["grad_out"] is None else grad["grad_out"] + more
    return grad["rows"], grad["weight"], None, None, grad["grad_out"], None


torch.library.register_autograd("tileformer::grouped_matmul", _backward, setup_context=_save_inputs)
torch.library.register_autograd(
    "tileformer::grouped_matmul_backward", _double_backward, setup_context=_save_backward_inputs
)
