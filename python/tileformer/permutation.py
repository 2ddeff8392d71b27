"""Tokens in the order of the experts that serve them, and back."""

from __future__ import annotations

import torch

from tileformer import _permutation_ops
from tileformer._functorch import inside_transform, refuse_tangents

_NO_FORWARD_MODE = (
    "tileformer.{function} has no forward-mode derivative (jvp), but {{name}} carries a tangent; detach it, "
    "or use torch's index_select and index_add"
)


def permute_tokens(
    tokens: torch.Tensor, experts: torch.Tensor, num_experts: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """A row for each (token, slot) pair, in the order of experts, then of tokens, then of slots.

    Args:
        tokens: [tokens, hidden], float32, bfloat16, float16 or float64.
        experts: int32 or int64 [tokens, k], 0 to num_experts - 1; -1 or num_experts where no expert serves
            the slot (dropped, or another rank's).
        num_experts: 1 or more.

    Returns:
        rows [tokens * k, hidden], in the dtype of tokens and differentiable in them;
        counts int64 [num_experts]: how many rows each expert has;
        source int64 [tokens * k]: row r is of the pair (t, j) with source[r] = t * k + j.
        Shapes do not depend on the indices: for slots without an expert as many rows at the end are 0, with
        source -1, and no count includes them.

    Raises:
        ValueError: an argument does not fit; the message names it, what was given and what is allowed.
        NotImplementedError: a forward-mode derivative is asked for.

    fused_experts does not need it: it reads tokens where they lie.
    """
    refuse_tangents(_NO_FORWARD_MODE.format(function="permute_tokens"), tokens=tokens)
    inside_transform("permute_tokens")
    return _permutation_ops.permute(tokens, experts, num_experts)


def unpermute_tokens(rows: torch.Tensor, source: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Each token as the sum of its rows, each times the weight of its slot.

    Args:
        rows: [rows, hidden], float32, bfloat16, float16 or float64 (float64: slow reference).
        source: int64 [rows], as permute_tokens returns it: t * k + j, no pair twice, or -1 for a row that has
            no influence, whatever it holds.
        weights: [tokens, k], any float dtype (float64 with float64 rows only), as route returns it.

    Returns:
        [tokens, hidden] in the dtype of rows, zeros for a token without rows. Summed in float32 in the order
        of the rows, rounded once. Differentiable once in rows and weights.

    Raises:
        ValueError: an argument does not fit; the message names it, what was given and what is allowed.
        NotImplementedError: a second or a forward-mode derivative is asked for.
    """
    refuse_tangents(_NO_FORWARD_MODE.format(function="unpermute_tokens"), rows=rows, weights=weights)
    inside_transform("unpermute_tokens")
    return _permutation_ops.unpermute(rows, source, weights)
