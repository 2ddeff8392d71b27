"""Hugging Face transformers: attn_implementation="tileformer", and fuse_linear_cross_entropy(model).

Importing this module registers two functions: the attention of a layer, and the mask that the model prepares
once per forward. The mask is what makes padding cheap: instead of a bool tensor [batch, 1, seq_q, seq_k] the
model gets, wherever its mask can be said in a few numbers, a *descriptor*, an int32 tensor that transformers
hands through untouched:

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

import torch
from transformers.masking_utils import (
    AttentionMaskInterface,
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
from transformers.modeling_utils import AttentionInterface
from transformers.utils import logging

from tileformer._attend import BOTTOM_RIGHT, NONE, attend
from tileformer.integrations.fused_loss import (  # noqa: F401  (part of this module's interface)
    fuse_linear_cross_entropy,
    unfuse_linear_cross_entropy,
)

NAME = "tileformer"

_logger = logging.get_logger("tileformer")
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
    """The mask that attention_forward understands: None, a descriptor (see above) or a bool mask.

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


def _in_one_row(tensor: torch.Tensor) -> torch.Tensor:
    """[batch, heads, seq, dim] -> [1, heads, batch * seq, dim]; no copy if memory is [batch, seq, ...]."""
    return tensor.transpose(1, 2).flatten(0, 1)[None].transpose(1, 2)


def _with_bias(mask: torch.Tensor | None, position_bias: torch.Tensor) -> torch.Tensor:
    """One float mask out of a learned bias and a mask, both broadcastable to [batch, heads, seq_q, seq_k]."""
    if mask is None:
        return position_bias
    if mask.dtype == torch.bool:
        return position_bias.masked_fill(~mask, float("-inf"))
    return position_bias + mask


def attention_forward(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    position_bias: torch.Tensor | None = None,
    cu_seq_lens_q: torch.Tensor | None = None,
    cu_seq_lens_k: torch.Tensor | None = None,
    **kwargs,
) -> tuple[torch.Tensor, None]:
    """Attention of one layer, as transformers calls it.

    query [batch, heads, seq_q, dim], key and value [batch, kv_heads, seq_k, dim]; attention_mask from
    prepare_mask() above, or any mask broadcastable to [batch, heads, seq_q, seq_k] (bool: true sees; float:
    added). cu_seq_lens_q and cu_seq_lens_k, int [n + 1], are FlashAttention's: where each of n packed
    sequences begins over all rows, and the end of the last. They count where no mask but packing is given.
    Returns (out [batch, seq_q, heads, dim_v], None): attention weights are never materialised.
    """
    if kwargs.get("output_attentions"):
        _logger.warning_once(
            "attn_implementation='tileformer' returns no attention weights; use 'eager' to see them."
        )
    if query.shape[0] != key.shape[0]:  # learned queries of batch 1
        query = query.expand(key.shape[0], -1, -1, -1)
    if is_causal is None:
        is_causal = getattr(module, "is_causal", True)
    left, right, key_range, query_offset = -1, -1, None, None
    mask = attention_mask
    if mask is not None and _is_descriptor(mask) and mask.shape[-1] == 1:
        if cu_seq_lens_q is None or cu_seq_lens_k is None:
            cu_seq_lens_q = cu_seq_lens_k = mask[0, 0, :, 0]
        is_causal, mask = True, None
        if attention_mask.shape[1] > 1:
            left = attention_mask.shape[1] - 1
    elif mask is None:
        if is_causal and sliding_window is not None:
            left = sliding_window - 1
    elif _is_descriptor(mask):
        is_causal = mask.shape[-1] == 3
        key_range = mask[:, 0, 0, :2]
        if is_causal:
            query_offset = mask[:, 0, 0, 2]
        if mask.shape[2] > 1:
            left = mask.shape[2] - 1
            right = -1 if is_causal else left
        mask = None
    else:
        is_causal = False  # the mask says it already
    if position_bias is not None:
        mask = _with_bias(mask, position_bias)
    if mask is not None or key_range is not None:
        cu_seq_lens_q = cu_seq_lens_k = None  # the mask keeps the packed sequences apart
    batch = query.shape[0]
    if cu_seq_lens_q is not None and cu_seq_lens_k is not None:
        cu_seq_lens_q, cu_seq_lens_k = cu_seq_lens_q.int(), cu_seq_lens_k.int()
        if batch > 1:
            query, key, value = _in_one_row(query), _in_one_row(key), _in_one_row(value)
    out = attend(
        query,
        key,
        value,
        mask,
        scaling,
        BOTTOM_RIGHT if is_causal else NONE,
        left,
        right,
        softcap or 0.0,
        s_aux,
        None,
        key_range,
        query_offset,
        cu_seq_lens_q,
        cu_seq_lens_k,
        dropout,
    )
    return out.transpose(1, 2).contiguous().view(batch, -1, *out.shape[1::2]), None


AttentionInterface.register(NAME, attention_forward)
AttentionMaskInterface.register(NAME, prepare_mask)
