"""A transformers Cache whose keys and values lie in the pages of a PagedKVCache.

    cache = tileformer.PagedKVCache.for_model(model, max_tokens=8192)
    model.generate(**inputs, cache=cache)

A layer calls update() with its new keys and values and hands what it returns to the attention function.
Instead of all keys, which would have to be copied together, it returns the new ones and puts the layer's
step among the keyword arguments of that function: attn_implementation="tileformer" stores and attends in
pages. Any other attention gets dense copies, which is right, slow, and said once.

A forward that fails or is interrupted leaves the cache usable: what it has added does not count, and is taken
back by the next forward or crop().
"""

from __future__ import annotations

import warnings
import weakref

import torch
from transformers.cache_utils import Cache, CacheLayerMixin

from tileformer.integrations.attention_mask import Visible
from tileformer.integrations.model_sizes import pool_for_model, text_config
from tileformer.integrations.paged_batch import PagedBatch
from tileformer.kv_cache import DEFAULT_PAGE_SIZE, PagedKVCache


class _LayerStep:
    """One layer's step, see LayerStep in transformers.py."""

    __slots__ = ("batch", "layer", "step")

    def __init__(self, batch: PagedBatch, layer: int) -> None:
        self.batch, self.layer = batch, layer

    def store(
        self, key: torch.Tensor, value: torch.Tensor, seen: Visible | None, config: object = None
    ) -> bool:
        self.batch.pending = None
        layers = getattr(config, "num_hidden_layers", None)
        if self.layer == 0 and layers is not None:
            if layers != len(self.batch.seen):
                raise _other_model(f"the model has {layers} layers,", key, value, self.batch)
            self.batch.whole = True
        # A dense mask shows no padding: all columns are stored then, and the mask hides them.
        if seen is not None and seen.starts is not None:
            raise ValueError("packed sequences cannot go into a cache; pass them without one, or one by one")
        rows, _, queries, _ = key.shape
        key_range = None if seen is None else seen.key_range
        self.step = self.batch.step_of(self.layer, rows, queries, key_range)
        self.batch.append(self.layer, key, value, self.step)
        return not self.step.fresh

    def attend(
        self,
        query: torch.Tensor,
        seen: Visible,
        scale: float | None,
        softcap: float,
        sinks: torch.Tensor | None,
    ) -> torch.Tensor:
        return self.batch.attend(
            self.layer, query, self.step, seen, scale=scale, softcap=softcap, sinks=sinks
        )


def _other_model(whose: str, key: torch.Tensor, value: torch.Tensor, batch: PagedBatch) -> ValueError:
    pool = batch.pool
    return ValueError(
        f"{whose} kv_heads {key.shape[1]}, head_dim {key.shape[3]}, v_head_dim {value.shape[3]}; "
        f"the cache has {len(batch.seen)} layers, kv_heads {pool.kv_heads}, head_dim {pool.head_dim}, "
        f"v_head_dim {pool.v_head_dim}: it was made for another model"
    )


class _Layer(CacheLayerMixin):
    """What transformers asks of a layer. Nothing is kept here: one page table serves all layers."""

    is_compileable = False
    is_croppable = True
    is_sliding = False  # its window is the attention's business: pages keep all keys
    supports_early_init = False

    def __init__(self, batch: PagedBatch) -> None:
        super().__init__()
        self._batch = batch
        self.is_initialized = True

    @property
    def batch_size(self) -> int:
        return len(self._batch.ids) or -1

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        pass

    def update(self, key_states, value_states, *args, **kwargs):
        raise NotImplementedError("the whole cache is updated: ModelCache.update(key, value, layer_idx, ...)")

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self._batch.finished + query_length, 0

    def get_seq_length(self) -> int:
        return self._batch.finished

    def get_max_length(self) -> int:
        return -1


class ModelCache(Cache):
    """The cache of one batch, to be passed to generate() or forward() as `cache`.

    pool: the pages, which several caches may share: a copy.deepcopy() of this cache costs none until the two
    differ. Rows are freed with the cache, or by reset(). config: the model's, which says the attention.
    """

    def __init__(self, pool: PagedKVCache, config, *, _batch: PagedBatch | None = None) -> None:
        self.pool = pool
        self._config = config
        # A model that drafts for itself leaves early: its config counts fewer layers meanwhile.
        layers = min(pool.num_layers, config.num_hidden_layers)
        self._batch = _batch if _batch is not None else PagedBatch(pool, layers)
        super().__init__(layers=[_Layer(self._batch) for _ in self._batch.seen])
        weakref.finalize(self, PagedBatch.reset, self._batch).atexit = False

    @classmethod
    def for_model(
        cls,
        model: torch.nn.Module,
        *,
        max_tokens: int | None = None,
        num_pages: int | None = None,
        page_size: int = DEFAULT_PAGE_SIZE,
        dtype: torch.dtype | None = None,
        value_dtype: torch.dtype | None = None,
    ) -> ModelCache:
        """A cache with a pool of its own, see pool_for_model."""
        pool = pool_for_model(
            model,
            max_tokens=max_tokens,
            num_pages=num_pages,
            page_size=page_size,
            dtype=dtype,
            value_dtype=value_dtype,
        )
        return cls(pool, text_config(model))

    @property
    def rows(self) -> tuple[int, ...]:
        """The pool's id of each row."""
        return tuple(self._batch.ids)

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args, **kwargs
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """key_states [batch, kv_heads, seq, dim]; see the head of this file for what is returned."""
        self._check(key_states, value_states, layer_idx)
        batch, attention = self._batch, kwargs.get("kwargs")
        # The next layer asks, or the next forward after the last layer: an interrupted forward ends earlier.
        skipped = batch.pending
        if skipped is not None and (layer_idx > 0 or skipped == len(self.layers) - 1):
            batch.pending = None
            raise RuntimeError(
                f"layer {skipped} was given only its new keys, and its attention asked for no others: "
                "it is not attn_implementation='tileformer'. Results would be wrong; use another cache"
            )
        if layer_idx == 0:
            batch.take_back()
        step = _LayerStep(batch, layer_idx)
        if attention is not None and self._config._attn_implementation == "tileformer":
            attention["tileformer_pages"] = step
            batch.pending = layer_idx
            return key_states, value_states
        if not step.store(key_states, value_states, None):
            return key_states, value_states
        if layer_idx == 0:
            warnings.warn(
                "a paged cache copies all keys and values together for every step, because the attention "
                f"{self._config._attn_implementation!r} reads no pages; set attn_implementation='tileformer'",
                stacklevel=2,
            )
        key, value = batch.gather(layer_idx, key_states)
        return key, value

    def _check(self, key: torch.Tensor, value: torch.Tensor, layer: int) -> None:
        pool = self.pool
        given = key.shape[1], key.shape[3], value.shape[3]
        if layer >= len(self.layers) or given != (pool.kv_heads, pool.head_dim, pool.v_head_dim):
            raise _other_model(f"layer {layer} (from 0) of the model has", key, value, self._batch)

    # transformers' words

    def crop(self, tokens_to_remove: int) -> None:
        """Forgets the last -tokens_to_remove positions (a negative number, as in transformers)."""
        if tokens_to_remove > 0:
            raise ValueError(f"tokens_to_remove is {tokens_to_remove}; allowed are 0 and below: -n removes n")
        self._batch.trim(-tokens_to_remove)

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        """Row i becomes row beam_idx[i]: pages are shared, not copied."""
        self._batch.select(beam_idx.tolist())

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        """Keeps the rows that indices (int, or bool over the rows) names."""
        if indices.dtype == torch.bool:
            indices = indices.nonzero().flatten()
        self._batch.select(indices.tolist())

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Every row `repeats` times, one after the other, in the same pages."""
        self._batch.select([row for row in range(len(self._batch.ids)) for _ in range(repeats)])

    def reset(self) -> None:
        """Frees all rows; the pool stays."""
        self._batch.reset()

    def __deepcopy__(self, memo: dict) -> ModelCache:
        copy = ModelCache(self.pool, self._config, _batch=self._batch.fork())
        memo[id(self)] = copy
        return copy

    def __repr__(self) -> str:
        return f"ModelCache({len(self._batch.ids)} rows of up to {self._batch.columns} tokens, {self.pool!r})"
