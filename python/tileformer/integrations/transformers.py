"""Hugging Face transformers: attn_implementation="tileformer", experts_implementation="tileformer", the paged
cache, fuse_linear_cross_entropy.

Importing this module registers three functions: the attention of a layer, the mask that the model prepares
once per forward (attention_mask.py), and a layer of experts (experts.py).
"""

from __future__ import annotations

from typing import Protocol

import torch
from transformers.integrations.moe import ExpertsInterface
from transformers.masking_utils import AttentionMaskInterface
from transformers.modeling_utils import AttentionInterface
from transformers.utils import logging

from tileformer._attend import BOTTOM_RIGHT, NONE, attend
from tileformer.integrations.attention_mask import Visible, prepare_mask, visible_keys
from tileformer.integrations.experts import experts_forward
from tileformer.integrations.fused_loss import (  # noqa: F401  (part of this module's interface)
    fuse_linear_cross_entropy,
    unfuse_linear_cross_entropy,
)
from tileformer.integrations.model_cache import ModelCache  # noqa: F401  (the same)
from tileformer.integrations.use_paged_cache import (  # noqa: F401  (the same)
    stop_paged_cache,
    use_paged_cache,
)

NAME = "tileformer"

_logger = logging.get_logger("tileformer")


class LayerStep(Protocol):
    """What a cache of pages puts among the keyword arguments of a layer's attention: the layer's step."""

    def store(self, key: torch.Tensor, value: torch.Tensor, seen: Visible, config: object = None) -> bool:
        """Writes the new keys and values into pages. False: there are no older ones, so these are all.

        config: of the model that calls, which need not be the one that the cache was made for.
        """

    def attend(
        self,
        query: torch.Tensor,
        seen: Visible,
        scale: float | None,
        softcap: float,
        sinks: torch.Tensor | None,
    ) -> torch.Tensor:
        """Attention over all that the pages hold; [batch, heads, seq_q, dim_v]."""


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
    tileformer_pages: LayerStep | None = None,
    **kwargs,
) -> tuple[torch.Tensor, None]:
    """Attention of one layer, as transformers calls it.

    query [batch, heads, seq_q, dim], key and value [batch, kv_heads, seq_k, dim]; attention_mask from
    prepare_mask(), or any mask broadcastable to [batch, heads, seq_q, seq_k] (bool: true sees; float:
    added). cu_seq_lens_q and cu_seq_lens_k, int [n + 1], are FlashAttention's: where each of n packed
    sequences begins over all rows, and the end of the last. They count where no mask but packing is given.
    tileformer_pages: put there by a paged cache, which holds the keys before these and stores these.
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
    seen = visible_keys(attention_mask, is_causal, sliding_window)
    mask, key_range = seen.mask, seen.key_range
    if seen.starts is not None and (cu_seq_lens_q is None or cu_seq_lens_k is None):
        cu_seq_lens_q = cu_seq_lens_k = seen.starts
    if position_bias is not None:
        mask = _with_bias(mask, position_bias)
    if tileformer_pages is not None:
        if position_bias is not None or dropout > 0:
            raise ValueError("the paged cache knows no position_bias and no dropout; use another cache")
        if tileformer_pages.store(key, value, seen, getattr(module, "config", None)):
            out = tileformer_pages.attend(query, seen, scaling, softcap or 0.0, s_aux)
            return out.transpose(1, 2), None
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
        BOTTOM_RIGHT if seen.causal else NONE,
        seen.left,
        seen.right,
        softcap or 0.0,
        s_aux,
        None,
        key_range,
        seen.query_offset,
        cu_seq_lens_q,
        cu_seq_lens_k,
        dropout,
    )
    return out.transpose(1, 2).contiguous().view(batch, -1, *out.shape[1::2]), None


AttentionInterface.register(NAME, attention_forward)
AttentionMaskInterface.register(NAME, prepare_mask)
ExpertsInterface.register(NAME, experts_forward)
