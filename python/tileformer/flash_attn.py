"""FlashAttention-2's functions: its names, arguments, [batch, seq, heads, dim] layout, defaults and return
values.

`deterministic` is accepted and changes nothing: results are always the same bits. With return_attn_probs the
functions return (out, softmax_lse, None): the third value is a debugging aid of the CUDA kernel that does not
exist here. A row that sees nothing has softmax_lse = +inf, as in FlashAttention-2.
"""

from __future__ import annotations

import math

import torch

from tileformer._attend import BOTTOM_RIGHT, NONE, attend
from tileformer.attention import window_bounds
from tileformer.paged_attention import paged_attention

_Result = torch.Tensor | tuple[torch.Tensor, torch.Tensor, None]


def _raise_rank(rank: int, layout: str, **tensors: torch.Tensor) -> None:
    for name, tensor in tensors.items():
        if tensor.dim() != rank:
            raise ValueError(f"{name} has {tensor.dim()} dimensions; needed are {rank}, {layout}")


def _unpack(packed: torch.Tensor, count: int, dim: int, name: str) -> tuple[torch.Tensor, ...]:
    if packed.dim() <= dim or packed.shape[dim] != count:
        raise ValueError(f"{name} has shape {list(packed.shape)}; dimension {dim} has to be {count}")
    return packed.unbind(dim)


def _lse_of_flash_attn(lse: torch.Tensor) -> torch.Tensor:
    return lse.masked_fill(lse == -math.inf, math.inf)


def flash_attn_func(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: torch.Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> _Result:
    """Attention of q [batch, seq_q, heads, dim] over k, v [batch, seq_k, kv_heads, dim]; causal is
    bottom-right.

    Returns out [batch, seq_q, heads, dim_v], or (out, softmax_lse float32 [batch, heads, seq_q], None).
    """
    if not q.dim() == k.dim() == v.dim() == 4:
        _raise_rank(4, "[batch, seq, heads, dim]", q=q, k=k, v=v)
    left, right = window_bounds(window_size, "window_size")
    result = attend(
        q.transpose(1, 2),
        k.transpose(1, 2),
        v.transpose(1, 2),
        None,
        softmax_scale,
        BOTTOM_RIGHT if causal else NONE,
        left,
        right,
        softcap,
        alibi_slopes=None if alibi_slopes is None else alibi_slopes.float(),
        dropout_p=dropout_p,
        return_lse=return_attn_probs,
    )
    if not return_attn_probs:
        return result.transpose(1, 2)
    out, lse = result
    return out.transpose(1, 2), _lse_of_flash_attn(lse), None


def flash_attn_varlen_func(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: torch.Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
    block_table: torch.Tensor | None = None,
) -> _Result:
    """Attention within packed sequences: q [total_q, heads, dim], k, v [total_k, kv_heads, dim].

    cu_seqlens_q and cu_seqlens_k, int32 or int64 [sequences + 1], say where each sequence begins.
    max_seqlen_q and max_seqlen_k are accepted for compatibility; the lengths are read from cu_seqlens.
    block_table int32 [sequences, blocks]: k and v are pages [blocks, page_size, kv_heads, dim] and
    cu_seqlens_k says how many keys each sequence has there; without gradients.
    Returns out [total_q, heads, dim_v], or (out, softmax_lse float32 [heads, total_q], None).
    """
    if block_table is not None:
        return _varlen_of_pages(
            q,
            k,
            v,
            cu_seqlens_q,
            cu_seqlens_k,
            dropout_p,
            softmax_scale,
            causal,
            window_size,
            softcap,
            alibi_slopes,
            return_attn_probs,
            block_table,
        )
    if not q.dim() == k.dim() == v.dim() == 3:
        _raise_rank(3, "[total, heads, dim]", q=q, k=k, v=v)
    left, right = window_bounds(window_size, "window_size")
    result = attend(
        q.transpose(0, 1).unsqueeze(0),
        k.transpose(0, 1).unsqueeze(0),
        v.transpose(0, 1).unsqueeze(0),
        None,
        softmax_scale,
        BOTTOM_RIGHT if causal else NONE,
        left,
        right,
        softcap,
        alibi_slopes=None if alibi_slopes is None else alibi_slopes.float(),
        cu_seqlens_query=cu_seqlens_q,
        cu_seqlens_key=cu_seqlens_k,
        dropout_p=dropout_p,
        return_lse=return_attn_probs,
    )
    if not return_attn_probs:
        return result.squeeze(0).transpose(0, 1)
    out, lse = result
    return out.squeeze(0).transpose(0, 1), _lse_of_flash_attn(lse.squeeze(0)), None


def _varlen_of_pages(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor,
    dropout_p: float,
    softmax_scale: float | None,
    causal: bool,
    window_size: tuple[int, int],
    softcap: float,
    alibi_slopes: torch.Tensor | None,
    return_attn_probs: bool,
    block_table: torch.Tensor,
) -> _Result:
    if dropout_p:
        raise ValueError(f"dropout_p is {dropout_p}; with block_table, which is for inference, only 0 is")
    _raise_rank(3, "[total, heads, dim]", q=q)
    _raise_rank(4, "[blocks, page_size, kv_heads, dim] with block_table", k=k, v=v)
    result = paged_attention(
        q,
        k.transpose(1, 2),
        v.transpose(1, 2),
        block_table,
        cu_seqlens_k.diff().to(torch.int32),
        cu_seqlens_query=cu_seqlens_q,
        scale=softmax_scale,
        causal=causal,
        window=window_bounds(window_size, "window_size"),
        softcap=softcap,
        alibi_slopes=alibi_slopes,
        return_lse=return_attn_probs,
    )
    return (result[0], _lse_of_flash_attn(result[1]), None) if return_attn_probs else result


def flash_attn_qkvpacked_func(
    qkv: torch.Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: torch.Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> _Result:
    """flash_attn_func of qkv [batch, seq, 3, heads, dim], read in place."""
    q, k, v = _unpack(qkv, 3, 2, "qkv")
    return flash_attn_func(
        q,
        k,
        v,
        dropout_p,
        softmax_scale,
        causal,
        window_size,
        softcap,
        alibi_slopes,
        deterministic,
        return_attn_probs,
    )


def flash_attn_kvpacked_func(
    q: torch.Tensor,
    kv: torch.Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: torch.Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> _Result:
    """flash_attn_func of q [batch, seq_q, heads, dim], kv [batch, seq_k, 2, kv_heads, dim], read in place."""
    k, v = _unpack(kv, 2, 2, "kv")
    return flash_attn_func(
        q,
        k,
        v,
        dropout_p,
        softmax_scale,
        causal,
        window_size,
        softcap,
        alibi_slopes,
        deterministic,
        return_attn_probs,
    )


def flash_attn_varlen_qkvpacked_func(
    qkv: torch.Tensor,
    cu_seqlens: torch.Tensor,
    max_seqlen: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: torch.Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> _Result:
    """flash_attn_varlen_func of qkv [total, 3, heads, dim], read in place."""
    q, k, v = _unpack(qkv, 3, 1, "qkv")
    return flash_attn_varlen_func(
        q,
        k,
        v,
        cu_seqlens,
        cu_seqlens,
        max_seqlen,
        max_seqlen,
        dropout_p,
        softmax_scale,
        causal,
        window_size,
        softcap,
        alibi_slopes,
        deterministic,
        return_attn_probs,
    )


def flash_attn_varlen_kvpacked_func(
    q: torch.Tensor,
    kv: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: torch.Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> _Result:
    """flash_attn_varlen_func of q [total_q, heads, dim] and kv [total_k, 2, kv_heads, dim], read in place."""
    k, v = _unpack(kv, 2, 1, "kv")
    return flash_attn_varlen_func(
        q,
        k,
        v,
        cu_seqlens_q,
        cu_seqlens_k,
        max_seqlen_q,
        max_seqlen_k,
        dropout_p,
        softmax_scale,
        causal,
        window_size,
        softcap,
        alibi_slopes,
        deterministic,
        return_attn_probs,
    )
