"""Attention over keys and values that lie in the pages of a pool, and queries rotated for it."""

from __future__ import annotations

import torch

from tileformer import _paged_ops
from tileformer.attention import causal_code, window_bounds


def refuse_gradients(name: str, **tensors: torch.Tensor | None) -> None:
    """Raises RuntimeError where a gradient is wanted that would be dropped in silence."""
    if not torch.is_grad_enabled():
        return
    for argument, tensor in tensors.items():
        if tensor is not None and tensor.requires_grad:
            raise RuntimeError(
                f"{argument} requires grad, but tileformer.{name} is for inference and has no gradient. "
                f"Call it under torch.no_grad(), or pass {argument}.detach(); tileformer.flash_attention is "
                "differentiable"
            )


def paged_attention(
    query: torch.Tensor,
    key_pages: torch.Tensor,
    value_pages: torch.Tensor,
    block_table: torch.Tensor,
    key_lengths: torch.Tensor,
    *,
    cu_seqlens_query: torch.Tensor | None = None,
    key_scale: torch.Tensor | None = None,
    value_scale: torch.Tensor | None = None,
    scale: float | None = None,
    causal: bool | str = False,
    window: tuple[int, int] = (-1, -1),
    attn_mask: torch.Tensor | None = None,
    alibi_slopes: torch.Tensor | None = None,
    softcap: float = 0.0,
    sinks: torch.Tensor | None = None,
    key_range: torch.Tensor | None = None,
    query_offset: torch.Tensor | None = None,
    return_lse: bool = False,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """softmax(scale * query key^T + bias) value, with keys and values read where they lie in their pages.

    Key j of sequence n is row j % page_size of page block_table[n, j // page_size].

    Args:
        query: [batch, heads, seq_q, dim]; or [tokens, heads, dim] with cu_seqlens_query, the queries of the
            sequences one after the other. float32, float16, bfloat16 or float64 (slow reference).
        key_pages: [pages, kv_heads, page_size, dim], any strides with adjacent elements in a row, so that
            [pages, page_size, kv_heads, dim] goes in as a transposed view. float32, float16, bfloat16, int8,
            float8_e4m3fn or float8_e5m2. page_size is a multiple of 16; any number if block_table has one
            column, so that a contiguous cache [batch, kv_heads, length, dim] is a pool too.
        value_pages: [pages, kv_heads, page_size, dim_v]; its dtype need not be that of key_pages.
        block_table: int32 [sequences, blocks]. Entries behind a sequence's last page are not read.
        key_lengths: int32 [sequences]. Rows behind it are not read.
        cu_seqlens_query: int32 or int64 [sequences + 1], where the queries of each sequence begin; the last
            entry is tokens.
        key_scale, value_scale: float32 [pages, kv_heads, page_size], for int8 and float8 pages: an element is
            its code times the scale of its row.
        scale, causal, window, alibi_slopes, softcap, sinks: as in tileformer.flash_attention.
        attn_mask: bool or float, broadcastable to [sequences, heads, longest seq_q, longest seq_k].
        key_range: int32 [sequences, 2]; keys outside [first, second) are not seen (padding).
        query_offset: int32 [sequences]; the key position that stands opposite query 0, in place of
            key_lengths - seq_q ("bottom_right") or 0 ("top_left").
        return_lse: also return the natural-log sum of exponentials.

    Few queries of a sequence (decode) and many (prefill) run in different kernels, sequence by sequence;
    tileformer.explain() names them. A sequence's results do not depend on the others. Decode multiplies int8
    in whole numbers: queries and weights are rounded to 15 bits of the row's largest one, a 256th of what the
    codes themselves are rounded to.

    Returns:
        out, shaped as query with dim_v last, in its dtype and memory layout; with return_lse (out, lse), lse
        float32 [batch, heads, seq_q] or [heads, tokens]. A query that sees nothing gets 0 and -inf.

    Raises:
        ValueError: an argument does not fit; the message names it, what was given and what is allowed.
        RuntimeError: an input requires grad in grad mode: this function has no gradient.

    Source: Kwon et al., Efficient Memory Management for LLM Serving with PagedAttention (2023).
    """
    code = causal_code(causal)
    left, right = window_bounds(window)
    refuse_gradients(
        "paged_attention",
        query=query,
        key_pages=key_pages,
        value_pages=value_pages,
        attn_mask=attn_mask,
        sinks=sinks,
        alibi_slopes=alibi_slopes,
    )
    out, lse = _paged_ops.attention(
        query,
        key_pages,
        value_pages,
        block_table,
        key_lengths,
        key_scale,
        value_scale,
        cu_seqlens_query,
        attn_mask,
        scale,
        code,
        left,
        right,
        softcap,
        sinks,
        None if alibi_slopes is None else alibi_slopes.float(),
        key_range,
        query_offset,
        return_lse,
    )
    return (out, lse) if return_lse else out


def apply_rotary(
    x: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    positions: torch.Tensor,
    interleaved: bool = False,
) -> torch.Tensor:
    """x with the first rotary_dim elements of every head rotated, by the code that PagedKVCache.append uses.

    Args:
        x: [tokens, heads, dim], float32, float16 or bfloat16.
        cos, sin: [positions, rotary_dim / 2], float32 or the dtype of x.
        positions: int64 [tokens], each a row of cos.
        interleaved: pairs are (2i, 2i + 1) as in GPT-J; otherwise (i, i + rotary_dim / 2) as in NeoX.

    Computes in float32. Returns a new tensor. Raises ValueError where an argument does not fit, RuntimeError
    where a gradient is wanted. Source: Su et al., RoFormer (2021).
    """
    refuse_gradients("apply_rotary", x=x, cos=cos, sin=sin)
    return _paged_ops.rotary(x, cos, sin, positions, interleaved)
