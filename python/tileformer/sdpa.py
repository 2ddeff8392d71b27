"""torch's scaled_dot_product_attention: as a function of ours, and torch's own one carried out here."""

from __future__ import annotations

import contextlib
import threading
from typing import ClassVar

import torch

from tileformer import _C
from tileformer._attend import NONE, TOP_LEFT, attend


def _common_batch(*tensors: torch.Tensor) -> list[torch.Tensor]:
    """Expands the dimensions before [heads, seq, dim] to a common size; views, no copies."""
    batch = torch.broadcast_shapes(*(t.shape[:-3] for t in tensors))
    return [t.expand(*batch, *t.shape[-3:]) for t in tensors]


def _mask_to_rank_4(mask: torch.Tensor, rank: int, batch: torch.Size) -> torch.Tensor:
    """The mask of query, key and value of `rank` dimensions, as that of their four-dimensional form."""
    if mask.dim() > rank:
        raise ValueError(f"attn_mask has {mask.dim()} dimensions, but query has {rank}")
    if rank == 3:
        return mask.unsqueeze(-3) if mask.dim() == 3 else mask
    if mask.dim() <= 3:
        return mask
    mask = mask.reshape((1,) * (rank - mask.dim()) + tuple(mask.shape))
    if all(n == 1 for n in mask.shape[:-3]):
        return mask.reshape(mask.shape[-4:])
    return mask.expand(*batch, *mask.shape[-3:]).flatten(0, rank - 4)


def _to_rank_4(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attn_mask: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None, torch.Size]:
    """[batch, heads, seq, dim] views of everything, and the dimensions that became batch."""
    rank = query.dim()
    if rank < 2 or key.dim() != rank or value.dim() != rank:
        raise ValueError(
            f"query, key and value have {rank}, {key.dim()} and {value.dim()} dimensions; they need the same "
            "number, at least 2: [..., seq, dim]"
        )
    if rank == 2:
        return query[None, None], key[None, None], value[None, None], attn_mask, torch.Size([1])
    if rank == 3:
        query, key, value = query.unsqueeze(1), key.unsqueeze(1), value.unsqueeze(1)
    query, key, value = _common_batch(query, key, value)
    batch = query.shape[:-3]
    if attn_mask is not None:
        attn_mask = _mask_to_rank_4(attn_mask, rank, batch)
    if rank > 4:
        query, key, value = (t.flatten(0, rank - 4) for t in (query, key, value))
    return query, key, value, attn_mask, batch


def scaled_dot_product_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """torch.nn.functional.scaled_dot_product_attention: its signature and semantics, carried out by
    tileformer.

    Args:
        query: [..., heads, seq_q, dim]; also [batch, seq_q, dim] and [seq_q, dim].
        key: [..., kv_heads, seq_k, dim].
        value: [..., kv_heads, seq_k, dim_v].
        attn_mask: bool (True: sees) or float (added), broadcastable to [..., heads, seq_q, seq_k].
        dropout_p: as in torch, applied whatever the mode of the model. Follows torch.manual_seed.
        is_causal: query i sees keys up to i (top-left). Not together with attn_mask.
        scale: default 1/sqrt(dim).
        enable_gqa: kv_heads may be a divisor of heads.

    Returns:
        [..., heads, seq_q, dim_v]. A row that sees nothing is 0, as in torch.

    Raises:
        RuntimeError: attn_mask together with is_causal, as in torch.
        ValueError: an argument does not fit.
    """
    if is_causal and attn_mask is not None:
        raise RuntimeError("attn_mask is given although is_causal is True; only one of them is allowed")
    rank, batch = query.dim(), None
    if not (rank == key.dim() == value.dim() == 4 and query.size(0) == key.size(0) == value.size(0)):
        query, key, value, attn_mask, batch = _to_rank_4(query, key, value, attn_mask)
    if not enable_gqa and key.size(1) != value.size(1) and 1 in (key.size(1), value.size(1)):
        kv_heads = max(key.size(1), value.size(1))
        key, value = (t.expand(-1, kv_heads, -1, -1) for t in (key, value))
    heads, kv_heads = query.size(1), key.size(1)
    if heads != kv_heads and not enable_gqa:
        if heads == 1:  # torch broadcasts heads like any other dimension
            query = query.expand(-1, kv_heads, -1, -1)
        elif kv_heads != 1:
            raise ValueError(
                f"query has {heads} heads and key has {kv_heads}; without enable_gqa they have to be equal, "
                "or one of them 1"
            )
    out = attend(query, key, value, attn_mask, scale, TOP_LEFT if is_causal else NONE, dropout_p=dropout_p)
    if rank == 4:
        return out
    if rank < 4:
        return out.squeeze(1) if rank == 3 else out[0, 0]
    return out.unflatten(0, batch)


def enable() -> None:
    """From now on torch.nn.functional.scaled_dot_product_attention on the CPU is carried out by tileformer.

    Models that call it run unchanged. It reaches every call for which torch chooses its flash kernel; calls
    with dropout, dim_v != dim, or a mask that requires grad go through torch's math path and are not seen
    here. Its gradients are computed here too. float64 stays with torch. Process-wide, all threads.
    """
    _C.set_sdpa_override(True)


def disable() -> None:
    """Puts torch's own kernel back."""
    _C.set_sdpa_override(False)


class enabled(contextlib.ContextDecorator):
    """enable() within a block or a decorated function; leaves things as it found them."""

    # What every open block found, of all objects and threads: the override is process-wide, so the block that
    # is left last has to restore what the one entered first found. And one object may be entered again before
    # it is left (a decorated function that calls itself).
    _found: ClassVar[list[bool]] = []
    _lock = threading.Lock()

    def __enter__(self) -> enabled:
        with self._lock:
            self._found.append(_C.sdpa_override())
            enable()
        return self

    def __exit__(self, *exc) -> None:
        with self._lock:
            if not self._found.pop():
                disable()
