"""The custom operators around pages, `torch.ops.tileformer.attention_paged` and others: their fake kernels.

For inference: none has an autograd formula. The functions for users refuse inputs that require grad.
"""

from __future__ import annotations

import torch

from tileformer import _C  # noqa: F401  (registers the operators)
from tileformer._ops import _check_devices, _empty_like_layout

attention = torch.ops.tileformer.attention_paged.default
append = torch.ops.tileformer.kv_append_.default
rotary = torch.ops.tileformer.rotary.default
slots = torch.ops.tileformer.kv_slots.default
copy_pages = torch.ops.tileformer.copy_pages_.default
merge = torch.ops.tileformer.merge_attention_states.default
_explain = torch.ops.tileformer.attention_paged_explain.default


def explain(*arguments) -> str:
    """The plan of a call of attention_paged with these arguments."""
    return bytes(_explain(*arguments).tolist()).decode()


@torch.library.register_fake("tileformer::attention_paged")
def fake_attention(
    query: torch.Tensor,
    key_pages: torch.Tensor,
    value_pages: torch.Tensor,
    block_table: torch.Tensor,
    key_lengths: torch.Tensor,
    *options,
) -> tuple[torch.Tensor, torch.Tensor]:
    _check_devices(query, key_pages, value_pages, block_table, key_lengths, *options)
    tokens_first = query.dim() == 3 and len(options) > 2 and options[2] is not None
    for name, tensor, layout in (
        ("query", query, "[batch, heads, seq, dim]; or [tokens, heads, dim] with cu_seqlens_query"),
        ("key_pages", key_pages, "[pages, kv_heads, page_size, dim]"),
        ("value_pages", value_pages, "[pages, kv_heads, page_size, dim_v]"),
    ):
        if tensor.dim() != 4 and not (tensor is query and tokens_first):
            raise ValueError(f"{name} has {tensor.dim()} dimensions; needed are 4, {layout}")
    return_lse = len(options) > 13 and options[13]
    statistics = torch.float64 if query.dtype == torch.float64 else torch.float32
    if tokens_first:
        tokens, heads, _ = query.shape
        lse = query.new_empty((heads, tokens) if return_lse else 0, dtype=statistics)
        return query.new_empty(tokens, heads, value_pages.shape[3]), lse
    return (
        _empty_like_layout((*query.shape[:3], value_pages.shape[3]), query),
        query.new_empty(query.shape[:3] if return_lse else 0, dtype=statistics),
    )


@torch.library.register_fake("tileformer::kv_append_")
def _(key: torch.Tensor, *others) -> None:
    _check_devices(key, *others)


@torch.library.register_fake("tileformer::rotary")
def _(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, positions: torch.Tensor, interleaved=False):
    _check_devices(x, cos, sin, positions)
    return x.new_empty(x.shape)


@torch.library.register_fake("tileformer::kv_slots")
def _(block_table: torch.Tensor, cache_seqlens: torch.Tensor, tokens: int, pages: int, page_size: int):
    _check_devices(block_table, cache_seqlens)
    total = block_table.shape[0] * tokens
    return (
        block_table.new_empty(total, dtype=torch.int64),
        block_table.new_empty(total, dtype=torch.int64),
        block_table.new_empty(block_table.shape[0]),
    )


@torch.library.register_fake("tileformer::copy_pages_")
def _(pools: list[torch.Tensor], copies: torch.Tensor) -> None:
    _check_devices(copies, *pools)


@torch.library.register_fake("tileformer::merge_attention_states")
def _(part_out: list[torch.Tensor], part_lse: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    _check_devices(*part_out, *part_lse)
    out = part_out[0]
    statistics = torch.float64 if out.dtype == torch.float64 else torch.float32
    return _empty_like_layout(tuple(out.shape), out), out.new_empty(out.shape[:3], dtype=statistics)
