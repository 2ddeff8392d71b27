"""The mask of a forward in a few numbers instead of a bool tensor [batch, 1, seq_q, seq_k].

transformers makes the mask once per forward and hands it to every layer. Wherever it can be said so,
prepare_mask() returns a *descriptor*, an int32 tensor that transformers hands through untouched:

    [batch, 1, window, 2]  bidirectional: (first key, last key + 1) of each sequence, the rest is padding
    [batch, 1, window, 3]  causal: (first key, last key + 1, key opposite query 0)
    [1, window, n + 1, 1]  causal, n packed sequences: where each begins, counted over all rows of the batch
                           one after the other, and the end of the last; also by FlashAttention's cu_seq_lens

`window` is 1 for unlimited; otherwise its size is the sliding window (a query sees itself and the window -
1 keys before it, bidirectional also those after it) and the dimension has stride 0. So the window is known
from the shape, without reading the tensor (which a compiled graph could not), and the descriptor stays
three numbers per sequence. For a static cache transformers makes masks contiguous: 12 bytes per sequence
and position of the window, still nothing of the size seq_q * seq_k. What cannot be said so (holes in the
padding, chunks, overlays, packed sequences in a compiled graph) is the exact bool mask of transformers'
sdpa, read where it lies.
"""

from __future__ import annotations

from collections.abc import Callable
from types import CodeType
from typing import NamedTuple

import torch
from transformers.masking_utils import (
    and_masks,
    bidirectional_mask_function,
    causal_mask_function,
    packed_sequence_mask_function,
    prepare_padding_mask,
    remap_positions_for_packed_sequence,
    sdpa_mask,
    sliding_window_bidirectional_overlay,
    sliding_window_overlay,
)

_AND_MASK = and_masks(causal_mask_function).__code__
_SLIDING = sliding_window_overlay(1).__code__
_SLIDING_BOTH_WAYS = sliding_window_bidirectional_overlay(1).__code__
_REMAP = remap_positions_for_packed_sequence(causal_mask_function, torch.empty(0)).__code__
_PACKED = packed_sequence_mask_function(torch.empty(0)).__code__


def _parts(mask_function: Callable) -> tuple[Callable, ...]:
    """The functions that and_masks() has joined in mask_function; none if that is not what it is."""
    if getattr(mask_function, "__code__", None) is not _AND_MASK:
        return ()
    return mask_function.__closure__[0].cell_contents


def _overlaid(mask_function: Callable, base: Callable, overlay: CodeType) -> int | None:
    """What the overlay was made with, if mask_function is that overlay over base and nothing more."""
    parts = _parts(mask_function)
    if len(parts) != 2 or parts[1] is not base or getattr(parts[0], "__code__", None) is not overlay:
        return None
    return parts[0].__closure__[0].cell_contents


def _sliding_window(mask_function: Callable) -> int | None:
    """The window if mask_function is transformers' causal sliding window and nothing more, else None."""
    window = _overlaid(mask_function, causal_mask_function, _SLIDING)
    return window if window is not None and window > 1 else None  # a descriptor has no way to say 1


def _window_both_ways(mask_function: Callable) -> int | None:
    """The same of the bidirectional one: a query sees itself and the window - 1 keys on either side."""
    distance = _overlaid(mask_function, bidirectional_mask_function, _SLIDING_BOTH_WAYS)
    return distance + 1 if distance is not None and distance >= 1 else None


def _packed_sequences(mask_function: Callable) -> tuple[torch.Tensor, Callable] | None:
    """What transformers makes of packed position_ids: (the sequence of each token, int [batch, seq]; the mask
    function within a sequence), or None for any other mask function.
    """
    parts = _parts(mask_function)
    if len(parts) != 2 or [getattr(part, "__code__", None) for part in parts] != [_REMAP, _PACKED]:
        return None
    within = parts[0].__closure__[_REMAP.co_freevars.index("mask_function")].cell_contents
    return parts[1].__closure__[0].cell_contents, within


def _describe_packed(sequences: torch.Tensor, window: int | None) -> torch.Tensor:
    """The descriptor of packed sequences, from the sequence of each token, int [batch, seq]."""
    begins = torch.ones_like(sequences, dtype=torch.bool)
    begins[:, 1:] = sequences[:, 1:] != sequences[:, :-1]
    starts = begins.flatten().nonzero().int()
    ends = torch.cat((starts, starts.new_tensor([[sequences.numel()]])))
    return ends[None, None].expand(1, window or 1, -1, -1)


def _key_range(padding: torch.Tensor) -> torch.Tensor | None:
    """int32 [batch, 2]: first and last + 1 true key of padding, bool [batch, keys]; None if it has holes."""
    count = padding.sum(-1)
    first = padding.int().argmax(-1) if padding.shape[-1] else count
    end = first + count
    positions = torch.arange(padding.shape[-1], device=padding.device)
    run = (positions >= first[:, None]) & (positions < end[:, None])
    if not torch.equal(run, padding):
        return None
    return torch.stack((first, end), -1).int()


def prepare_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int | torch.Tensor = 0,
    kv_offset: int = 0,
    mask_function: Callable = causal_mask_function,
    attention_mask: torch.Tensor | None = None,
    local_size: int | None = None,
    allow_is_causal_skip: bool = True,
    allow_is_bidirectional_skip: bool = False,
    use_vmap: bool = False,
    device: torch.device | str = "cpu",
    **kwargs,
) -> torch.Tensor | None:
    """The mask that visible_keys() understands: None, a descriptor (see above) or a bool mask.

    The arguments are those of transformers' mask functions; attention_mask is bool [batch, keys], true at a
    token. None means plain causal, bottom-right, or no mask at all, as the layer's is_causal says.
    """
    causal, bidirectional = (
        mask_function is causal_mask_function,
        mask_function is bidirectional_mask_function,
    )
    window = None
    if not (causal or bidirectional or use_vmap or torch.compiler.is_compiling()):
        packed = _packed_sequences(mask_function) if attention_mask is None else None
        if packed is not None:
            window = _sliding_window(packed[1])
            if window is not None or packed[1] is causal_mask_function:
                return _describe_packed(packed[0], window)
        window = _sliding_window(mask_function)
        causal = window is not None
        # The window of an encoder is measured from the query's own position.
        if not causal and isinstance(q_offset, int) and q_offset == kv_offset and q_length == kv_length:
            window = _window_both_ways(mask_function)
            bidirectional = window is not None
    keys = None
    if (causal or bidirectional) and not use_vmap:
        if attention_mask is None:
            keys = torch.tensor([[0, kv_length]], dtype=torch.int32, device=device).expand(batch_size, 2)
        elif not torch.compiler.is_compiling():  # whether the padding has holes can only be seen by looking
            padding = prepare_padding_mask(attention_mask, kv_length, kv_offset)
            keys = _key_range(padding[:, kv_offset : kv_offset + kv_length].bool())
    if keys is None:
        return sdpa_mask(
            batch_size,
            q_length,
            kv_length,
            q_offset,
            kv_offset,
            mask_function,
            attention_mask,
            local_size=local_size,
            allow_is_causal_skip=False,
            allow_is_bidirectional_skip=False,
            use_vmap=use_vmap,
            device=device,
        )

    if window is not None and window >= kv_length:
        window = None
    all_keys = attention_mask is None or bool((keys == torch.tensor([0, kv_length], dtype=torch.int32)).all())
    if bidirectional:
        if all_keys and window is None and allow_is_bidirectional_skip:
            return None
        return keys[:, None, None].expand(-1, 1, window or 1, 2)
    aligned = isinstance(q_offset, int) and q_offset - kv_offset + q_length == kv_length
    if all_keys and aligned and window is None and allow_is_causal_skip:
        return None
    diagonal = (
        torch.as_tensor(q_offset - kv_offset, dtype=torch.int32, device=device)
        .reshape(1, 1)
        .expand(batch_size, 1)
    )
    return torch.cat((keys, diagonal), -1)[:, None, None].expand(-1, 1, window or 1, 3)


def _is_descriptor(mask: torch.Tensor) -> bool:
    return mask.dtype == torch.int32 and mask.dim() == 4 and mask.shape[-1] in (1, 2, 3)


class Visible(NamedTuple):
    """Which keys a query sees, as the operators take it."""

    causal: bool
    left: int  # of the window; -1: unlimited
    right: int
    key_range: torch.Tensor | None  # int32 [batch, 2]
    query_offset: torch.Tensor | None  # int32 [batch]
    mask: torch.Tensor | None  # bool or float, [batch | 1, heads | 1, seq_q | 1, seq_k | 1]
    starts: torch.Tensor | None  # int [sequences + 1], of packed sequences


def visible_keys(mask: torch.Tensor | None, is_causal: bool, sliding_window: int | None) -> Visible:
    """What a mask of prepare_mask() says; any other mask says all there is, a missing one nothing.

    is_causal and sliding_window, those of the layer, count where there is no mask.
    """
    if mask is None:
        left = sliding_window - 1 if is_causal and sliding_window is not None else -1
        return Visible(is_causal, left, -1, None, None, None, None)
    if not _is_descriptor(mask):
        return Visible(False, -1, -1, None, None, mask, None)
    if mask.shape[-1] == 1:
        return Visible(True, mask.shape[1] - 1 or -1, -1, None, None, None, mask[0, 0, :, 0])
    left = mask.shape[2] - 1 or -1
    if mask.shape[-1] == 2:
        return Visible(False, left, left, mask[:, 0, 0, :2], None, None, None)
    return Visible(True, left, -1, mask[:, 0, 0, :2], mask[:, 0, 0, 2], None, None)
