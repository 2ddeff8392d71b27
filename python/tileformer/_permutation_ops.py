"""`torch.ops.tileformer.permute_tokens` and `unpermute_tokens`: fake kernels and autograd. The operators
themselves are C++.
"""

from __future__ import annotations

import torch

from tileformer import _C  # noqa: F401  (registers the operators)
from tileformer._ops import _check_devices
from tileformer._routing_ops import check_rank

permute = torch.ops.tileformer.permute_tokens.default
unpermute = torch.ops.tileformer.unpermute_tokens.default
_unpermute_backward = torch.ops.tileformer.unpermute_tokens_backward.default


@torch.library.register_fake("tileformer::permute_tokens")
def _(
    tokens: torch.Tensor, experts: torch.Tensor, num_experts: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    _check_devices(tokens, experts)
    check_rank("tokens", tokens, "[tokens, hidden]")
    check_rank("experts", experts, "[tokens, k]")
    pairs = experts.shape[0] * experts.shape[1]
    return (
        tokens.new_empty(pairs, tokens.shape[1]),
        tokens.new_empty(num_experts, dtype=torch.int64),
        tokens.new_empty(pairs, dtype=torch.int64),
    )


@torch.library.register_fake("tileformer::unpermute_tokens")
def _(rows: torch.Tensor, source: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    _check_devices(rows, source, weights)
    check_rank("rows", rows, "[rows, hidden]")
    check_rank("weights", weights, "[tokens, k]")
    return rows.new_empty(weights.shape[0], rows.shape[1])


@torch.library.register_fake("tileformer::unpermute_tokens_backward")
def _(
    grad_out: torch.Tensor,
    rows: torch.Tensor,
    source: torch.Tensor,
    weights: torch.Tensor,
    want_rows: bool,
    want_weights: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    _check_devices(rows, grad_out, source, weights)
    return (
        rows.new_empty(rows.shape if want_rows else 0),
        weights.new_empty(weights.shape if want_weights else 0),
    )


def _save_permuted(ctx, inputs: tuple, output: tuple) -> None:
    _, counts, source = output
    ctx.slots = inputs[1].shape
    ctx.mark_non_differentiable(counts, source)
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(source)


def _tokens_gradient(ctx, grad_rows: torch.Tensor | None, *_indices) -> tuple:
    if grad_rows is None or not ctx.needs_input_grad[0]:
        return None, None, None
    (source,) = ctx.saved_tensors
    dtype = torch.float64 if grad_rows.dtype == torch.float64 else torch.float32
    each_once = torch.ones((1, 1), dtype=dtype, device=grad_rows.device).expand(ctx.slots)
    return unpermute(grad_rows, source, each_once), None, None


def _save_unpermuted(ctx, inputs: tuple, output: torch.Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _unpermuted_gradients(ctx, grad_out: torch.Tensor) -> tuple:
    want_rows, _, want_weights = ctx.needs_input_grad
    grad_rows, grad_weights = _unpermute_backward(grad_out, *ctx.saved_tensors, want_rows, want_weights)
    return grad_rows if want_rows else None, None, grad_weights if want_weights else None


def _no_second_derivative(ctx, *grads):
    raise NotImplementedError(
        "tileformer.unpermute_tokens has no second derivative (double backward); use index_add where one is "
        "needed"
    )


torch.library.register_autograd("tileformer::permute_tokens", _tokens_gradient, setup_context=_save_permuted)
torch.library.register_autograd(
    "tileformer::unpermute_tokens", _unpermuted_gradients, setup_context=_save_unpermuted
)
torch.library.register_autograd("tileformer::unpermute_tokens_backward", _no_second_derivative)
