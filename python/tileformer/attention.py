"""tileformer's own attention function."""

from __future__ import annotations

import torch

from tileformer._attend import BOTTOM_RIGHT, NONE, TOP_LEFT, attend

_CAUSAL = {False: NONE, True: BOTTOM_RIGHT, "top_left": TOP_LEFT, "bottom_right": BOTTOM_RIGHT}


def causal_code(causal: bool | str) -> int:
    """What the operator calls the kind of causal."""
    try:
        return _CAUSAL[causal]
    except (KeyError, TypeError):
        raise ValueError(
            f"causal is {causal!r}; allowed are False, True, 'top_left', 'bottom_right'"
        ) from None


def window_bounds(window: tuple[int, int], name: str = "window") -> tuple[int, int]:
    """Checks a (left, right) pair and returns it."""
    try:
        left, right = window
    except (TypeError, ValueError):
        raise ValueError(f"{name} is {window!r}; needed is a pair (left, right), -1 for unlimited") from None
    return left, right


def flash_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    scale: float | None = None,
    causal: bool | str = False,
    window: tuple[int, int] = (-1, -1),
    attn_mask: torch.Tensor | None = None,
    alibi_slopes: torch.Tensor | None = None,
    softcap: float = 0.0,
    sinks: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    return_lse: bool = False,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """softmax(scale * query key^T + bias) value, in memory that grows with seq_q + seq_k.

    Args:
        query: [batch, heads, seq_q, dim], float32, float16, bfloat16 or float64 (float64: slow reference).
            Any strides.
        key: [batch, kv_heads, seq_k, dim], dtype of query; kv_heads divides heads. Query head i reads kv head
            i // (heads // kv_heads); nothing is repeated in memory.
        value: [batch, kv_heads, seq_k, dim_v], dtype of query. dim and dim_v are 1..576 and may differ.
        scale: factor of the scores, default 1/sqrt(dim).
        causal: False, "top_left" (query i sees keys up to i), True or "bottom_right" (to i + seq_k - seq_q).
        window: (left, right), how far a query sees from the diagonal, inclusive; -1 is unlimited.
        attn_mask: bool (True: sees) or float (added), broadcastable to [batch, heads, seq_q, seq_k], any
            strides; it is read where it lies, never expanded.
        alibi_slopes: [heads] or [batch, heads]; adds -slope * |i + diagonal - j|.
        softcap: c > 0 turns every score x into c * tanh(x / c).
        sinks: [heads], float; a logit per head that joins the denominator only.
        dropout_p: probability with which a weight is dropped, 0 <= p < 1. Follows torch.manual_seed.
        return_lse: also return the natural-log sum of exponentials.

    Differentiable in query, key, value, sinks and a float attn_mask (summed over the dimensions in which it
    broadcasts); lse is differentiable too, so that blocks which are merged by it train correctly.

    Returns:
        out [batch, heads, seq_q, dim_v], dtype and memory layout of query; with return_lse (out, lse), lse
        float32 [batch, heads, seq_q]. A query that sees nothing gets 0 and -inf.

    Raises:
        ValueError: an argument does not fit; the message names it, what was given and what is allowed.
        NotImplementedError: alibi_slopes requires grad; a second derivative is wanted.
    """
    code = causal_code(causal)
    left, right = window_bounds(window)
    if alibi_slopes is not None:
        alibi_slopes = alibi_slopes.float()
    return attend(
        query,
        key,
        value,
        attn_mask,
        scale,
        code,
        left,
        right,
        softcap,
        sinks,
        alibi_slopes,
        dropout_p=dropout_p,
        return_lse=return_lse,
    )
