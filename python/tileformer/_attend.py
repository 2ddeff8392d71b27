"""The one way from every Python facade to the operator."""

from __future__ import annotations

import torch

from tileformer import _ops
from tileformer._functorch import inside_transform, refuse_tangents

NONE, TOP_LEFT, BOTTOM_RIGHT = 0, 1, 2  # what the operator calls the kinds of causal


def attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    scale: float | None = None,
    causal: int = NONE,
    window_left: int = -1,
    window_right: int = -1,
    softcap: float = 0.0,
    sinks: torch.Tensor | None = None,
    alibi_slopes: torch.Tensor | None = None,
    key_range: torch.Tensor | None = None,
    query_offset: torch.Tensor | None = None,
    cu_seqlens_query: torch.Tensor | None = None,
    cu_seqlens_key: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    return_lse: bool = False,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """Attention over [batch, heads, seq, dim]; the arguments are those of the operator, see
    include/tileformer/attention.h.

    Returns out [batch, heads, seq_q, dim_v] in the memory layout of query, and with return_lse also the
    natural-log sum of exponentials, float32 [batch, heads, seq_q]. Both are differentiable in query, key,
    value, sinks and a floating attn_mask. Raises NotImplementedError when another gradient is wanted: of
    alibi_slopes, of second order, or in forward mode.
    """
    differentiable = torch.is_grad_enabled() and (
        inside_transform("flash_attention")
        or query.requires_grad
        or key.requires_grad
        or value.requires_grad
        or (attn_mask is not None and attn_mask.requires_grad)
        or (sinks is not None and sinks.requires_grad)
        or (alibi_slopes is not None and alibi_slopes.requires_grad)
    )
    refuse_tangents(
        _ops.NO_FORWARD_MODE,
        query=query,
        key=key,
        value=value,
        attn_mask=attn_mask,
        sinks=sinks,
        alibi_slopes=alibi_slopes,
    )
    op = _ops.forward if return_lse or differentiable else _ops.inference
    if (
        softcap == 0
        and dropout_p == 0
        and sinks is alibi_slopes is key_range is query_offset is cu_seqlens_query is cu_seqlens_key is None
    ):  # every argument that is passed costs some 0.1 us
        result = op(query, key, value, attn_mask, scale, causal, window_left, window_right)
    else:
        # Seed and offset come from torch's generator as a tensor: a compiled graph draws them anew each time.
        dropout_state = torch.randint(0, 2**63 - 1, (2,), dtype=torch.int64) if dropout_p > 0 else None
        result = op(
            query,
            key,
            value,
            attn_mask,
            scale,
            causal,
            window_left,
            window_right,
            softcap,
            sinks,
            alibi_slopes,
            key_range,
            query_offset,
            cu_seqlens_query,
            cu_seqlens_key,
            dropout_p,
            dropout_state,
        )
    return result[0] if differentiable and not return_lse else result
