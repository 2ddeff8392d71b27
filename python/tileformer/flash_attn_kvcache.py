"""FlashAttention-2's flash_attn_with_kvcache."""

from __future__ import annotations

import torch

from tileformer import _paged_ops
from tileformer._attend import BOTTOM_RIGHT, NONE
from tileformer.attention import window_bounds
from tileformer.flash_attn import _lse_of_flash_attn, _raise_rank
from tileformer.paged_attention import refuse_gradients


def _int32(name: str, tensor: torch.Tensor) -> torch.Tensor:
    """An integer tensor of the caller's as int32, nothing cut off."""
    if not isinstance(tensor, torch.Tensor) or tensor.dtype not in (torch.int32, torch.int64):
        given = tensor.dtype if isinstance(tensor, torch.Tensor) else type(tensor).__name__
        raise ValueError(f"{name} is {given}; needed is an int32 tensor")
    # What an int64 holds is data, which a graph cannot branch on.
    if tensor.dtype == torch.int64 and not torch.compiler.is_compiling() and tensor.device.type == "cpu":
        wide = tensor.to(torch.int32) != tensor
        if wide.any():
            raise ValueError(f"{name} holds {tensor[wide][0].item()}; allowed are numbers of 32 bits")
    return tensor.to(torch.int32)


def _batched(name: str, tensor: torch.Tensor, batch: int) -> torch.Tensor:
    """An int32 [batch] of the caller's, checked."""
    tensor = _int32(name, tensor)
    if tensor.shape != (batch,):
        raise ValueError(
            f"{name} has shape {list(tensor.shape)}; needed is [{batch}], one for each of the batch"
        )
    return tensor


def _raise_repeated(cache_batch_idx: torch.Tensor) -> None:
    """Two sequences that write into one row of the cache would overwrite each other."""
    if torch.compiler.is_compiling() or cache_batch_idx.device.type != "cpu":
        return
    if cache_batch_idx.unique().numel() != cache_batch_idx.numel():
        raise ValueError(
            f"cache_batch_idx is {cache_batch_idx.tolist()}; with k and v every row may be there once only"
        )


def _table(
    k_cache: torch.Tensor,
    batch: int,
    cache_batch_idx: torch.Tensor | None,
    block_table: torch.Tensor | None,
) -> torch.Tensor:
    """Where the keys of each sequence lie. A contiguous cache is a pool of sequences with one page each."""
    if block_table is not None:
        if cache_batch_idx is not None:
            raise ValueError("cache_batch_idx is given with block_table, which says itself where keys lie")
        if block_table.dim() != 2 or block_table.shape[0] != batch:
            raise ValueError(
                f"block_table has shape {list(block_table.shape)}; needed is [{batch}, blocks], a row for "
                "each of the batch"
            )
        return _int32("block_table", block_table)
    if cache_batch_idx is not None:
        return _batched("cache_batch_idx", cache_batch_idx, batch).unsqueeze(1)
    if k_cache.shape[0] < batch:
        raise ValueError(f"k_cache has batch {k_cache.shape[0]}, but q has {batch}")
    return torch.arange(batch, dtype=torch.int32).unsqueeze(1)


def flash_attn_with_kvcache(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    k: torch.Tensor | None = None,
    v: torch.Tensor | None = None,
    rotary_cos: torch.Tensor | None = None,
    rotary_sin: torch.Tensor | None = None,
    cache_seqlens: int | torch.Tensor | None = None,
    cache_batch_idx: torch.Tensor | None = None,
    cache_leftpad: torch.Tensor | None = None,
    block_table: torch.Tensor | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    rotary_interleaved: bool = True,
    alibi_slopes: torch.Tensor | None = None,
    num_splits: int = 0,
    return_softmax_lse: bool = False,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """Attention over a cache of keys and values, into which new ones are written first.

    Args:
        q: [batch, seq_q, heads, dim].
        k_cache, v_cache: [batch_cache, seq_cache, kv_heads, dim], or with block_table [blocks, page_size,
            kv_heads, dim], page_size a multiple of 16. Read where they lie; never copied.
        k, v: [batch, seq_new, kv_heads, dim], both or none: written into the caches at cache_seqlens of their
            sequence, before anything is attended to.
        rotary_cos, rotary_sin: [positions, rotary_dim / 2], with k and v alone: k is rotated by its position
            in the cache; q by cache_seqlens + i if causal or windowed, otherwise all of it by cache_seqlens.
        cache_seqlens: int or int32 [batch], what the caches hold before k and v. None: all of seq_cache;
            needed with k.
        cache_batch_idx: int32 [batch], the row of the caches of each sequence; default 0, 1, 2, ...
        cache_leftpad: int32 [batch], where each sequence begins in the cache; default 0. Positions and
            cache_seqlens count from row 0 all the same.
        block_table: int32 [batch, blocks], the pages of each sequence.
        softmax_scale: default 1/sqrt(dim).
        causal, window_size: bottom-right aligned to the keys, those of k included.
        rotary_interleaved: pairs are (2i, 2i + 1); otherwise (i, i + rotary_dim / 2).
        alibi_slopes: [heads] or [batch, heads].
        num_splits: accepted and ignored. Keys are split at fixed points, so that results depend neither on
            it nor on the number of threads.
        return_softmax_lse: also return softmax_lse.

    Returns:
        out [batch, seq_q, heads, dim_v], or (out, softmax_lse float32 [batch, heads, seq_q]). A row that sees
        nothing has 0 and +inf, as in FlashAttention-2.

    Raises:
        ValueError: an argument does not fit, or the cache has no room for k; nothing was written.
        RuntimeError: a gradient is wanted: there is none.

    Source: FlashAttention-2's interface (Dao, 2023), which wants pages of 256 and no leftpad with them; these
    limits are not here.
    """
    _raise_rank(4, "[batch, seq, heads, dim]", q=q, k_cache=k_cache, v_cache=v_cache)
    refuse_gradients(
        "flash_attn_with_kvcache", q=q, k_cache=k_cache, v_cache=v_cache, k=k, v=v, alibi_slopes=alibi_slopes
    )
    if (k is None) != (v is None):
        raise ValueError("k and v have to be given together; one of them is None")
    if (rotary_cos is None) != (rotary_sin is None):
        raise ValueError("rotary_cos and rotary_sin have to be given together; one of them is None")
    if rotary_cos is not None and k is None:
        raise ValueError("rotary_cos is given without k and v, the keys that it rotates")
    left, right = window_bounds(window_size, "window_size")
    batch, seq_q = q.shape[:2]
    key_pages, value_pages = k_cache.transpose(1, 2), v_cache.transpose(1, 2)
    table = _table(k_cache, batch, cache_batch_idx, block_table)

    if cache_seqlens is None:
        if k is not None:
            raise ValueError("cache_seqlens is None, but with k and v it has to say where these go")
        cache_seqlens = table.shape[1] * k_cache.shape[1]
    if isinstance(cache_seqlens, int) and not isinstance(cache_seqlens, bool):
        if not 0 <= cache_seqlens < 2**31:
            raise ValueError(f"cache_seqlens is {cache_seqlens}; allowed are 0 to {2**31 - 1}")
        cache_seqlens = torch.full((batch,), cache_seqlens, dtype=torch.int32)
    lengths = _batched("cache_seqlens", cache_seqlens, batch)

    if k is not None:
        _raise_rank(4, "[batch, seq, kv_heads, dim]", k=k, v=v)
        new = k.shape[1]
        if k.shape[0] != batch or v.shape[:2] != k.shape[:2]:
            raise ValueError(
                f"k and v have shapes {list(k.shape)} and {list(v.shape)}; needed are [{batch}, seq_new, "
                "kv_heads, dim]"
            )
        if cache_batch_idx is not None:
            _raise_repeated(cache_batch_idx)
        held = lengths
        slots, positions, lengths = _paged_ops.slots(table, held, new, k_cache.shape[0], k_cache.shape[1])
        rotary = ()
        if rotary_cos is not None:
            rotary = (rotary_cos, rotary_sin, positions, rotary_interleaved)
            local = causal or left >= 0 or right >= 0
            if not (local and seq_q == new):
                positions = held.long().unsqueeze(1)
                if local:
                    positions = positions + torch.arange(seq_q)
                positions = positions.expand(batch, seq_q).reshape(-1)
            rotated = _paged_ops.rotary(
                q.flatten(0, 1), rotary_cos, rotary_sin, positions, rotary_interleaved
            )
            q = rotated.view(q.shape)
        _paged_ops.append(
            k.flatten(0, 1), v.flatten(0, 1), key_pages, value_pages, slots, None, None, *rotary
        )

    key_range = None
    if cache_leftpad is not None:
        first = _batched("cache_leftpad", cache_leftpad, batch)
        key_range = torch.stack((first, lengths), 1)
    out, lse = _paged_ops.attention(
        q.transpose(1, 2),
        key_pages,
        value_pages,
        table,
        lengths,
        None,
        None,
        None,
        None,
        softmax_scale,
        BOTTOM_RIGHT if causal else NONE,
        left,
        right,
        softcap,
        None,
        None if alibi_slopes is None else alibi_slopes.float(),
        key_range,
        None,
        return_softmax_lse,
    )
    out = out.transpose(1, 2)
    return (out, _lse_of_flash_attn(lse)) if return_softmax_lse else out
