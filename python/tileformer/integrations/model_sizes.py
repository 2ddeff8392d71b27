"""How large a paged cache has to be for a Hugging Face model."""

from __future__ import annotations

import torch
from transformers.cache_utils import get_layer_types_and_kwargs

from tileformer.kv_cache import DEFAULT_PAGE_SIZE, PagedKVCache

_ATTENTION = ("full_attention", "sliding_attention", "chunked_attention")
# What a pool may take of the memory that is available, where nobody says how large it shall be. Only what is
# written is taken.
_DEFAULT_SHARE = 0.5


def pool_for_model(
    model: torch.nn.Module,
    *,
    max_tokens: int | None = None,
    num_pages: int | None = None,
    page_size: int = DEFAULT_PAGE_SIZE,
    dtype: torch.dtype | None = None,
    value_dtype: torch.dtype | None = None,
) -> PagedKVCache:
    """A PagedKVCache with the layers, heads and dims of the model, in its dtype if none is given.

    Size: num_pages, or max_tokens of all sequences together; by default what half of the available memory
    holds. Raises ValueError for a model whose layers one pool cannot serve; the message says why.
    """
    kv_heads, dim, dim_v = _layer_shape(model)
    dtype = model.dtype if dtype is None else dtype
    value_dtype = dtype if value_dtype is None else value_dtype
    layers = text_config(model).num_hidden_layers
    if num_pages is not None and max_tokens is not None:
        raise ValueError("max_tokens and num_pages are both given; one of them says the size")
    if max_tokens is not None:
        if max_tokens < 1:
            raise ValueError(f"max_tokens is {max_tokens}; allowed are whole numbers from 1")
        num_pages = -(-max_tokens // page_size)
    elif num_pages is None:
        row = layers * kv_heads * (dim * dtype.itemsize + dim_v * value_dtype.itemsize)
        num_pages = max(1, int(_DEFAULT_SHARE * _available_bytes()) // (row * page_size))
    return PagedKVCache(
        layers,
        kv_heads,
        dim,
        v_head_dim=dim_v,
        num_pages=num_pages,
        page_size=page_size,
        dtype=dtype,
        value_dtype=value_dtype,
    )


def text_config(model: torch.nn.Module):
    """The configuration of the part of the model that decodes text."""
    return model.config.get_text_config(decoder=True)


def why_not_paged(model: torch.nn.Module) -> str | None:
    """Why one pool of pages cannot serve the model; None if it can."""
    if getattr(model.config, "is_encoder_decoder", False):
        return "it is an encoder-decoder: keys of the encoder's output never grow and need no pages"
    config = text_config(model)
    other = sorted(set(get_layer_types_and_kwargs(config)[0]) - set(_ATTENTION))
    if other or getattr(config, "num_kv_shared_layers", 0):
        kinds = ", ".join(other) or "layers that read another layer's keys"
        return f"it has {kinds}; a paged cache knows {', '.join(_ATTENTION)}"
    shapes = {_shape_of(layer) for layer in config.per_layer_config}
    if len(shapes) > 1:
        return f"its layers differ in (kv heads, dim, value dim): {sorted(shapes)}; one pool serves one shape"
    return None


def _layer_shape(model: torch.nn.Module) -> tuple[int, int, int]:
    reason = why_not_paged(model)
    if reason is not None:
        raise ValueError(f"model: got {type(model).__name__}, which cannot have a paged cache: {reason}")
    return _shape_of(text_config(model).per_layer_config[0])


def _shape_of(config) -> tuple[int, int, int]:
    """(kv heads, dim of keys, dim of values) of a layer."""
    heads = config.num_attention_heads
    kv_heads = getattr(config, "num_key_value_heads", None) or heads
    rope = getattr(config, "qk_rope_head_dim", None)
    if rope is not None and getattr(config, "v_head_dim", None) is not None:  # latent attention, expanded
        return heads, config.qk_nope_head_dim + rope, config.v_head_dim
    dim = getattr(config, "head_dim", None) or config.hidden_size // heads
    return kv_heads, dim, dim


def _available_bytes() -> int:
    with open("/proc/meminfo") as file:
        for line in file:
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return 1 << 30
