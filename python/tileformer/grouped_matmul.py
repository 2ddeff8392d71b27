"""Rows in the order of their experts times each expert's weights."""

from __future__ import annotations

import torch
from torch.autograd import forward_ad

from tileformer import _grouped_matmul_ops
from tileformer._functorch import inside_transform


def grouped_matmul(
    rows: torch.Tensor,
    weight: torch.Tensor,
    counts: torch.Tensor,
    bias: torch.Tensor | None = None,
) -> torch.Tensor:
    """out[r] = weight[e] @ rows[r] + bias[e], where the first counts[0] rows belong to expert 0, and so on.

    permute_tokens makes rows and counts. Rows beyond counts.sum() belong to no expert: they are not read, and
    their output and gradient are zero.

    Args:
        rows: [rows, in], float32, bfloat16, float16 or float64 (float64: slow reference).
        weight: [experts, out, in], dtype of rows, as torch.nn.Linear stores it. Weights stored as
            [experts, in, out] go in as weight.transpose(1, 2), without a copy. Experts with up to 8 rows read
            theirs at the speed of memory if `in` is the last dimension in memory.
        counts: int64 [experts], read when the call is made; at least 0, with a sum of at most `rows`.
        bias: [experts, out], float32, bfloat16 or float16 (float64 beside float64).

    Sums are float32, rounded once. Results, gradients included, are the same bits for any number of threads.
    A NaN stays in its row.

    Returns:
        [rows, out], dtype of rows. Differentiable in rows, weight and bias, any number of times; the gradient
        of weight has its layout in memory.

    Raises:
        ValueError: an argument does not fit; the message names it, what was given and what is allowed.
        NotImplementedError: a forward-mode derivative is asked for, or one by torch.func.

    torch.nn.functional.grouped_mm(rows, weight.transpose(1, 2), offs=counts.cumsum(0).int()) is the same
    product, with offsets instead of counts. Source: Gale et al., MegaBlocks (2022).
    """
    if forward_ad._current_level >= 0:
        _refuse_tangents(rows=rows, weight=weight, bias=bias)
    inside_transform("grouped_matmul")
    return _grouped_matmul_ops.forward(rows, weight, counts, bias)


def _refuse_tangents(**tensors: torch.Tensor | None) -> None:
    # Operators without a forward-mode formula drop tangents in silence.
    for name, tensor in tensors.items():
        if tensor is not None and forward_ad.unpack_dual(tensor).tangent is not None:
            raise NotImplementedError(
                f"tileformer.grouped_matmul has no forward-mode derivative (jvp), but {name} carries a "
                "tangent; detach it, or use torch.nn.functional.grouped_mm"
            )
