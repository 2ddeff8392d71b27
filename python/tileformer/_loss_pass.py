"""The pass over chunks of rows: logits, their cross-entropy and its gradients, never all logits at a time.

For every chunk: logits = hidden weight^T by torch's matmul, then `cross_entropy_rows_` turns them into losses
and, where a gradient is wanted, into their own gradient in place, then two more products give the chunk's
part of the gradients. The gradient of weight is summed in fp32 over all chunks.

Ignored rows are left out before the first product: they cost nothing, and nothing that they hold (a NaN
times a gradient of zero is NaN) can reach a sum over rows.
"""

from __future__ import annotations

import platform
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from tileformer import _C  # noqa: F401  (registers the operators)

_rows_loss = torch.ops.tileformer.cross_entropy_rows_.default


@dataclass(frozen=True)
class LossOptions:
    """What a row's loss is; include/tileformer/cross_entropy.h has the formula."""

    ignore_index: int
    label_smoothing: float
    z_loss: float
    softcap: float


@dataclass
class Gradients:
    """Of the sum of the row losses, in fp32 (float64 for float64); None where not wanted."""

    hidden: torch.Tensor | None = None
    weight: torch.Tensor | None = None
    bias: torch.Tensor | None = None


def rows_per_chunk(rows: int, hidden_size: int, vocab: int) -> int:
    """Rows whose logits are in memory at a time.

    Every chunk reads weight twice, and reads and writes its gradient: with few rows that is what takes the
    time. 256 rows reach 96 % of the speed of 1024, 64 rows 83 % (Zen 3, one core, fp32, hidden 576). The
    logits, chunk * vocab, are kept to the size of weight's gradient, hidden_size * vocab, which is there
    anyway, but not below 64 rows, nor (small vocabularies) below a million logits.
    """
    return max(1, min(rows, max(64, min(256, hidden_size), (1 << 20) // vocab)))


def weight_rows_per_slice(vocab: int, hidden_size: int) -> int:
    """Rows of weight converted to fp32 at a time: 4 MiB, which the product then reads from the cache."""
    return max(1, min(vocab, (1 << 20) // max(hidden_size, 1)))


def multiplies_bf16() -> bool:
    """Whether torch's matmul multiplies bf16 with instructions for it, instead of emulating them."""
    if not (torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported()):
        return False
    if platform.machine() in ("x86_64", "AMD64"):  # there oneDNN "supports" it from AVX-512 on, by conversion
        return torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    return True


def product_dtype(dtype: torch.dtype) -> torch.dtype:
    """What logits and products are computed in.

    fp32 for half types, except bf16 where the CPU has instructions for it. fp16 always: gradients of
    probabilities below 6e-8 would vanish in it.
    """
    if dtype == torch.bfloat16 and multiplies_bf16():
        return dtype
    return torch.float64 if dtype == torch.float64 else torch.float32


def _weight_slices(weight: torch.Tensor, dtype: torch.dtype) -> Iterator[tuple[slice, torch.Tensor]]:
    """weight [vocab, hidden] in dtype: itself, or one slice of rows after the other in the same scratch."""
    vocab, hidden_size = weight.shape
    if weight.dtype == dtype:
        yield slice(0, vocab), weight
        return
    step = weight_rows_per_slice(vocab, hidden_size)
    scratch = weight.new_empty((step, hidden_size), dtype=dtype)
    for begin in range(0, vocab, step):
        end = min(begin + step, vocab)
        yield slice(begin, end), scratch[: end - begin].copy_(weight[begin:end])


def _logits(hidden: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, out: torch.Tensor) -> None:
    for classes, w in _weight_slices(weight, hidden.dtype):
        if bias is None:
            torch.mm(hidden, w.t(), out=out[:, classes])
        else:
            torch.addmm(bias[classes], hidden, w.t(), out=out[:, classes])


def _hidden_gradient(logits_gradient: torch.Tensor, weight: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """logits_gradient weight in fp32 (a native bf16 product rounds it once)."""
    if weight.dtype == logits_gradient.dtype:
        return torch.mm(logits_gradient, weight)
    total = logits_gradient.new_zeros(like.shape)
    for classes, w in _weight_slices(weight, logits_gradient.dtype):
        total.addmm_(logits_gradient[:, classes], w)
    return total


def _add_weight_gradient(total: torch.Tensor, logits_gradient: torch.Tensor, hidden: torch.Tensor) -> None:
    if logits_gradient.dtype == total.dtype:
        total.addmm_(logits_gradient.t(), hidden)
        return
    # torch's bf16 product on the CPU has no fp32 output: a chunk's part is rounded to bf16, the sum is not.
    step = 4 * weight_rows_per_slice(*total.shape)
    for begin in range(0, total.shape[0], step):
        total[begin : begin + step] += torch.mm(logits_gradient[:, begin : begin + step].t(), hidden)


def counted_rows(target: torch.Tensor, vocab: int, ignore_index: int) -> torch.Tensor | None:
    """Indices of the rows that are not ignored; None for all of them. Raises ValueError for a bad target."""
    counted = target != ignore_index
    wrong = ((target < 0) | (target >= vocab)) & counted
    if wrong.any():
        row = int(wrong.int().argmax())
        raise ValueError(
            f"target: got {int(target[row])} in row {row}, expected 0 to {vocab - 1}, "
            f"or ignore_index {ignore_index}"
        )
    return None if counted.all() else counted.nonzero().squeeze(1)


def loss_pass(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    target: torch.Tensor,
    bias: torch.Tensor | None,
    options: LossOptions,
    *,
    want: tuple[bool, bool, bool] = (False, False, False),
    row_scale: torch.Tensor | None = None,
) -> tuple[torch.Tensor, Gradients]:
    """Loss of every row [rows], 0 where ignored, and the gradients that are wanted, of the sum of the losses.

    hidden [rows, hidden], weight [vocab, hidden], target int64 [rows], bias [vocab]. want: of hidden, weight,
    bias. row_scale, fp32 [rows]: the gradients are those of sum(row_scale * loss).
    """
    (rows, hidden_size), vocab = hidden.shape, weight.shape[0]
    dtype = product_dtype(hidden.dtype)
    precise = torch.float64 if dtype == torch.float64 else torch.float32
    counted = counted_rows(target, vocab, options.ignore_index)
    count = rows if counted is None else counted.numel()

    loss = hidden.new_zeros(rows, dtype=precise)
    gradients = Gradients(
        hidden.new_zeros((rows, hidden_size), dtype=precise) if want[0] else None,
        weight.new_zeros((vocab, hidden_size), dtype=precise) if want[1] else None,
        weight.new_zeros(vocab, dtype=precise) if want[2] else None,
    )
    if bias is not None:
        bias = bias.to(dtype)
    step = rows_per_chunk(count, hidden_size, vocab)
    buffer = hidden.new_empty((min(step, count), vocab), dtype=dtype)
    for begin in range(0, count, step):
        chunk = slice(begin, min(begin + step, count))
        index = chunk if counted is None else counted[chunk]
        h = hidden[index].to(dtype)
        logits = buffer[: h.shape[0]]
        _logits(h, weight, bias, logits)
        chunk_loss = loss.new_empty(h.shape[0])
        _rows_loss(
            logits,
            target[index],
            chunk_loss,
            None if row_scale is None else row_scale[index].to(precise),
            options.ignore_index,
            options.label_smoothing,
            options.z_loss,
            options.softcap,
            any(want),
        )
        loss[index] = chunk_loss
        if gradients.hidden is not None:
            gradients.hidden[index] = _hidden_gradient(logits, weight, h).to(precise)
        if gradients.weight is not None:
            _add_weight_gradient(gradients.weight, logits, h)
        if gradients.bias is not None:
            gradients.bias += logits.sum(0, dtype=precise)
    return loss, gradients
