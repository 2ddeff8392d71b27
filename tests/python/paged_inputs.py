"""Pools of pages with known contents: what tests of paged attention start from."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch

QUANTISED = {torch.int8: 127.0, torch.float8_e4m3fn: 448.0, torch.float8_e5m2: 57344.0}


def quantise(x: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """(codes, scale) with one scale for each row, as append writes them."""
    largest = x.float().abs().amax(-1)
    scaled = x.float() * (QUANTISED[dtype] / largest)[..., None]
    if dtype == torch.int8:
        scaled = scaled.round()
    return scaled.to(dtype), largest / QUANTISED[dtype]


class Pool(NamedTuple):
    pages: torch.Tensor  # [pages, kv_heads, page_size, dim]
    scale: torch.Tensor | None
    dense: list[torch.Tensor]  # of each sequence, [kv_heads, length, dim], dequantised


class Paged(NamedTuple):
    key: Pool
    value: Pool
    block_table: torch.Tensor
    key_lengths: torch.Tensor

    def arguments(self) -> tuple[torch.Tensor, ...]:
        return self.key.pages, self.value.pages, self.block_table, self.key_lengths

    def scales(self) -> dict[str, torch.Tensor | None]:
        return dict(key_scale=self.key.scale, value_scale=self.value.scale)


def _pool(table, lengths, pages, kv_heads, page_size, dim, dtype, generator) -> Pool:
    # Everything that no sequence holds is NaN, in the codes or in the scales.
    storage = torch.full((pages, kv_heads, page_size, dim), math.nan)
    scale = torch.full((pages, kv_heads, page_size), math.nan) if dtype in QUANTISED else None
    storage = torch.zeros(storage.shape).to(dtype) if dtype == torch.int8 else storage.to(dtype)
    raw = storage.view(torch.int8) if storage.element_size() == 1 else storage
    dense = []
    for n, length in enumerate(lengths):
        rows = torch.randn(length, kv_heads, dim, generator=generator)
        rows, row_scale = quantise(rows, dtype) if scale is not None else (rows.to(dtype), None)
        codes = rows.view(torch.int8) if rows.element_size() == 1 else rows
        for j in range(length):
            page = int(table[n, j // page_size])
            raw[page, :, j % page_size] = codes[j]
            if scale is not None:
                scale[page, :, j % page_size] = row_scale[j]
        exact = rows.float() if scale is None else rows.float() * row_scale[..., None]
        dense.append(exact.transpose(0, 1))
    return Pool(storage, scale, dense)


def paged(
    lengths, *, kv_heads=2, dim=32, dim_v=None, page_size=16, dtype=torch.float32, value_dtype=None, seed=0
) -> Paged:
    """Sequences of these lengths in pages in no order; the table goes on behind each sequence's last page."""
    generator = torch.Generator().manual_seed(seed)
    blocks = [-(-length // page_size) for length in lengths]
    pages = sum(blocks) + 3
    order = torch.randperm(pages, generator=generator).tolist()
    table = torch.full((len(lengths), max(blocks, default=0) + 1), -7, dtype=torch.int32)
    for n, count in enumerate(blocks):
        for b in range(count):
            table[n, b] = order.pop()
    shape = (pages, kv_heads, page_size)
    key = _pool(table, lengths, *shape, dim, dtype, generator)
    value = _pool(table, lengths, *shape, dim_v or dim, value_dtype or dtype, generator)
    return Paged(key, value, table, torch.tensor(lengths, dtype=torch.int32))
