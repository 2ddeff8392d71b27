"""Continuous batching without copies: transformers' cache is attended to where it lies.

transformers' PagedAttentionCache writes new keys and values into its pages and then copies all keys of all
requests of the batch together, in every layer and step; on a GPU only batches of nothing but decode steps
take a block table instead. BatchingPages puts itself in the place of two methods of one such cache:

    update                         writes into the pages, copies nothing, and hands the attention function a
                                   block table for decode steps, prompts, and batches of both
    extend_read_and_write_indices  lists the pages of a request instead of its tokens

Layers with a sliding window are transformers' own business: their pages are a ring in which a prompt's new
keys overwrite old ones that its first queries still see, so at most a window of keys is copied there.

Private names of transformers 5.24 that this touches are those methods, cache_allocators, layer_to_allocator,
and of an allocator block_table, block_physical_stride, tokens_per_page, num_blocks and _kv_page_views.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain

import torch
from transformers.generation.continuous_batching.cache import FULL_ATTENTION, PagedAttentionCache

from tileformer import _paged_ops
from tileformer.integrations.attention_mask import Visible
from tileformer.paged_attention import paged_attention


@dataclass(slots=True)
class _Step:
    """What a forward adds to the full-attention layers: made by the first of them, used by all."""

    key: torch.Tensor  # an argument of the forward: the same object in all of its layers, and in no other
    slots: torch.Tensor  # int64 [tokens]: page * page_size + row
    block_table: torch.Tensor | None  # int32 [requests, blocks]; None: no request has older tokens
    key_lengths: torch.Tensor  # int32 [requests]
    cu_seqlens: torch.Tensor  # int32 [requests + 1]


class _LayerStep:
    """One layer's step, see LayerStep in transformers.py. update() has stored its keys already."""

    __slots__ = ("pages", "step")

    def __init__(self, step: _Step, pages: tuple[torch.Tensor, torch.Tensor]) -> None:
        self.step, self.pages = step, pages

    def store(self, key: torch.Tensor, value: torch.Tensor, seen: Visible, config: object = None) -> bool:
        return self.step.block_table is not None

    def attend(
        self,
        query: torch.Tensor,
        seen: Visible,
        scale: float | None,
        softcap: float,
        sinks: torch.Tensor | None,
    ) -> torch.Tensor:
        step = self.step
        out = paged_attention(
            query[0].transpose(0, 1),
            *self.pages,
            step.block_table,
            step.key_lengths,
            cu_seqlens_query=step.cu_seqlens,
            scale=scale,
            causal=seen.causal,
            window=(seen.left, seen.right),
            softcap=softcap,
            sinks=sinks,
        )
        return out.transpose(0, 1)[None]


class BatchingPages:
    """Puts itself into cache, see above. peak_pages: the most pages of a layer that requests held at once."""

    def __init__(self, cache: PagedAttentionCache) -> None:
        self._cache = cache
        self._step: _Step | None = None
        self._counted_at: torch.Tensor | None = None  # the step, by the argument that is its key
        self._full = cache.cache_allocators.get(FULL_ATTENTION)
        self._counted = self._full or next(iter(cache.cache_allocators.values()))
        self._pages: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self.num_pages, self.peak_pages = self._counted.num_blocks, 0
        if self._full is not None:
            views = self._full._kv_page_views  # layer -> K, V [pages, page_size, kv_heads, dim]
            self._pages = {layer: tuple(t.transpose(1, 2) for t in kv) for layer, kv in views.items()}
        self._copying_update = cache.update
        cache.update = self.update
        cache.extend_read_and_write_indices = self.extend_read_and_write_indices

    @property
    def used_pages(self) -> int:
        """Pages of a layer that requests hold now; one that several share counts once. Of a layer without a
        window, if there is one.
        """
        return len(set(chain.from_iterable(self._counted.block_table.values())))

    def update(
        self, key: torch.Tensor, value: torch.Tensor, layer: int, kwargs: dict
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """key, value [1, kv_heads, tokens, dim] of all requests; kwargs: those of the attention function."""
        allocator = self._cache.layer_to_allocator[layer]
        if kwargs["cu_seq_lens_q"] is not self._counted_at:
            self._counted_at = kwargs["cu_seq_lens_q"]
            self.peak_pages = max(self.peak_pages, self.used_pages)
        if allocator is not self._full:
            return self._copying_update(key, value, layer, kwargs)
        if self._step is None or self._step.key is not kwargs["cu_seq_lens_q"]:
            self._step = self._step_of(kwargs)
        kwargs["cu_seq_lens_k"] = kwargs["cu_seq_lens_k"][allocator.layer_type]
        kwargs["max_length_k"] = kwargs["max_length_k"][allocator.layer_type]
        kwargs["tileformer_pages"] = _LayerStep(self._step, self._pages[layer])
        rows = (t[0].transpose(0, 1) for t in (key, value))
        _paged_ops.append(*rows, *self._pages[layer], self._step.slots, None, None)
        return key, value

    def _step_of(self, kwargs: dict) -> _Step:
        full, size = self._full, self._full.tokens_per_page
        lengths = kwargs["cu_seq_lens_k"][full.layer_type].diff().int()
        blocks = (lengths + (size - 1)) // size
        if kwargs.get("block_table") is not None:  # one new token of each request
            table = kwargs["block_table"][full.index][:, : int(blocks.max())]
            last = (lengths - 1).long()
            slots = table.gather(1, (last // size)[:, None])[:, 0].long() * size + last % size
        else:
            slots, table = kwargs["write_index"][full.index], None
            pages = kwargs["read_index"][full.index]
            if pages.numel():  # those of each request, one after the other
                columns = torch.arange(int(blocks.max()))
                begins = blocks.cumsum(0) - blocks
                table = pages[(begins[:, None] + columns).clamp_(max=pages.numel() - 1)].int()
        cu_seqlens = kwargs["cu_seq_lens_q"]
        return _Step(cu_seqlens, slots, table, lengths, cu_seqlens)

    def extend_read_and_write_indices(
        self,
        request_id: str,
        past_length: int,
        query_length: int,
        read_index: list[list[int]] | None,
        write_index: list[list[int]],
    ) -> None:
        """What a request adds to the indices of a batch, an entry of the lists for each allocator."""
        for i, allocator in enumerate(self._cache.cache_allocators.values()):
            write_index[i].extend(allocator.get_write_indices(request_id, past_length, query_length))
            if read_index is None:
                continue
            if allocator is self._full:
                size = allocator.tokens_per_page
                pages_of_block = allocator.block_physical_stride // size
                count = -(-(past_length + query_length) // size)
                blocks = allocator.block_table[request_id][:count]
                read_index[i].extend(block * pages_of_block for block in blocks)
            else:
                read_index[i].extend(allocator.get_read_indices(request_id, past_length, query_length))
