"""The switch that makes model.generate() use pages by itself."""

from __future__ import annotations

import functools
import types

import torch
from transformers.modeling_utils import PreTrainedModel

from tileformer.integrations.model_cache import ModelCache
from tileformer.integrations.model_sizes import pool_for_model, text_config
from tileformer.kv_cache import DEFAULT_PAGE_SIZE, PagedKVCache

_SWITCH = "_tileformer_paged_cache"
# Who passes one of these to generate() has chosen a cache.
_CHOICES = ("cache", "past_key_values", "cache_implementation", "custom_generate")


class _Switch:
    """What stop_paged_cache() needs to put everything back."""

    def __init__(self, model: PreTrainedModel, pool: PagedKVCache) -> None:
        self.pool = pool
        self.attention = model.config._attn_implementation

    def __deepcopy__(self, memo: dict) -> _Switch:
        return self  # a copied model keeps its sequences in the same pool

    def __reduce__(self):
        return type(None), ()  # a saved model comes back without it


def _wants_a_cache(model: PreTrainedModel, generation_config, options: dict) -> bool:
    if any(options.get(name) is not None for name in _CHOICES):
        return False
    for name, default in (("use_cache", True), ("cache_implementation", None)):
        value = options.get(name, getattr(generation_config or model.generation_config, name, default))
        if value not in (default, True, None):
            return False
    return True


def use_paged_cache(
    model: PreTrainedModel,
    *,
    max_tokens: int | None = None,
    num_pages: int | None = None,
    page_size: int = DEFAULT_PAGE_SIZE,
    dtype: torch.dtype | None = None,
    value_dtype: torch.dtype | None = None,
) -> PreTrainedModel:
    """From now on model.generate() keeps keys and values in pages, read by tileformer's attention.

    Sets attn_implementation="tileformer". One pool serves all calls; its size is that of
    PagedKVCache.for_model. A call that is given a cache, or use_cache=False, does what it did.
    stop_paged_cache(model) undoes it. Called again, it makes a pool of the new size.

    copy.deepcopy(model) shares the pool. A model that was saved (pickle, torch.save) comes back with the same
    attention but without pages, until this is called for it.

    Returns the model. Raises ValueError for a model whose layers a pool of pages cannot serve.
    """
    pool = pool_for_model(
        model,
        max_tokens=max_tokens,
        num_pages=num_pages,
        page_size=page_size,
        dtype=dtype,
        value_dtype=value_dtype,
    )
    stop_paged_cache(model)
    # A saved model brings back its class's generate() in the place of ours.
    if getattr(vars(model).get("generate", model.generate), "__func__", None) is not type(model).generate:
        raise ValueError("model: its generate() was replaced already; use the paged cache before that")
    switch = _Switch(model, pool)

    @functools.wraps(type(model).generate)
    def generate(self, inputs=None, generation_config=None, *args, **options):
        if _wants_a_cache(self, generation_config, options):
            options["cache"] = ModelCache(switch.pool, text_config(self))
        return type(self).generate(self, inputs, generation_config, *args, **options)

    model.set_attn_implementation("tileformer")
    vars(model)[_SWITCH] = switch
    vars(model)["generate"] = types.MethodType(generate, model)
    return model


def stop_paged_cache(model: PreTrainedModel) -> PreTrainedModel:
    """Undoes use_paged_cache(); the attention is what it was before. Nothing to undo: does nothing."""
    switch = vars(model).pop(_SWITCH, None)
    if switch is not None:
        del vars(model)["generate"]
        model.set_attn_implementation(switch.attention)
    return model
