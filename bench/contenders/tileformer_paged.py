"""tileformer over PagedKVCache, over a cache of the caller in FlashAttention's layout, and without pages."""

from __future__ import annotations

from types import ModuleType

import torch

from bench.contenders import Unsupported
from bench.inputs import DTYPES
from bench.paged_case import AppendCase, PagedCase
from bench.paged_inputs import CACHE_DTYPES, PagedCall, PagedInputs, checked_tokens, huge_tensor


def _cache_and_step(tileformer: ModuleType, inputs: PagedInputs):
    """A PagedKVCache of one layer, and the step that writes all keys into pages in no order."""
    case = inputs.case
    table = inputs.table(case.page)
    cache = tileformer.PagedKVCache(
        1,
        case.kv_heads,
        case.dim,
        num_pages=int(table.max()) + 1,
        page_size=case.page,
        dtype=CACHE_DTYPES[case.cache_dtype],
    )
    # The allocator of a new cache hands out pages in order, which is kinder to memory than a long-running
    # server is: these are the same steps with other pages.
    slots, lengths = inputs.slots(case.page), inputs.lengths
    positions = torch.cat([torch.arange(length) for length in case.lengths])
    starts = torch.cat([torch.zeros(1, dtype=torch.int32), lengths.cumsum(0, dtype=torch.int32)])
    step = cache.extend([cache.add()], 0)
    return cache, step._replace(
        slots=slots, positions=positions, block_table=table, key_lengths=lengths, cu_seqlens=starts
    )


def attention_call(tileformer: ModuleType, case: PagedCase, inputs: PagedInputs) -> PagedCall:
    """Raises Unsupported."""
    prepare = {"pages": _paged, "flash": _flash, "contiguous": _contiguous}[case.layout]
    return prepare(tileformer, case, inputs)


def _paged(tileformer: ModuleType, case: PagedCase, inputs: PagedInputs) -> PagedCall:
    cache, step = _cache_and_step(tileformer, inputs)
    cache.append(0, inputs.key, inputs.value, step)
    step = step._replace(cu_seqlens=inputs.starts)

    def run() -> torch.Tensor:
        return cache.attend(0, inputs.query, step)

    return PagedCall(run, run, cache.nbytes)


def _flash(tileformer: ModuleType, case: PagedCase, inputs: PagedInputs) -> PagedCall:
    if case.cache_dtype != case.dtype or len(set(case.queries)) != 1:
        raise Unsupported("FlashAttention's cache: the queries' dtype, and as many queries of each sequence")
    table, slots = inputs.table(case.page), inputs.slots(case.page)

    def pool(rows: torch.Tensor) -> torch.Tensor:
        shape = int(table.max()) + 1, case.page, case.kv_heads, case.dim
        pages = huge_tensor(shape, DTYPES[case.dtype])
        pages.view(-1, case.kv_heads, case.dim).index_copy_(0, slots, rows)
        return pages

    keys, values = pool(inputs.key), pool(inputs.value)
    query = inputs.dense_query().transpose(1, 2)

    def run() -> torch.Tensor:
        return tileformer.flash_attn_with_kvcache(
            query, keys, values, cache_seqlens=inputs.lengths, block_table=table, causal=True
        )

    return PagedCall(run, lambda: run().flatten(0, 1), 2 * keys.nbytes)


def _contiguous(tileformer: ModuleType, case: PagedCase, inputs: PagedInputs) -> PagedCall:
    if case.cache_dtype != case.dtype:
        raise Unsupported("a contiguous cache has the queries' dtype")
    if not case.is_even:  # packed, as tileformer takes sequences of different lengths
        starts, ends = inputs.starts, torch.zeros(len(case.lengths) + 1, dtype=torch.int32)
        ends[1:] = inputs.lengths.cumsum(0)
        longest = max(case.queries), max(case.lengths)

        def packed() -> torch.Tensor:
            return tileformer.flash_attn_varlen_func(
                inputs.query, inputs.key, inputs.value, starts, ends, *longest, causal=True
            )

        return PagedCall(packed, packed, 2 * inputs.key.nbytes)
    query = inputs.dense_query().contiguous()
    key, value = inputs.dense(inputs.key), inputs.dense(inputs.value)

    def run() -> torch.Tensor:
        return tileformer.flash_attention(query, key, value, causal=True)

    return PagedCall(run, lambda: run().transpose(1, 2).flatten(0, 1), 2 * key.nbytes)


def append_call(tileformer: ModuleType, case: AppendCase, inputs: PagedInputs) -> PagedCall:
    """Into a PagedKVCache."""
    cache, step = _cache_and_step(tileformer, inputs)

    def read_back() -> torch.Tensor:
        run()
        slots = step.slots[checked_tokens(case)]
        page, row = slots // case.page, slots % case.page
        layer = cache.layer(0)
        pools = (layer.key, layer.key_scale), (layer.value, layer.value_scale)
        out = []
        for pool, scale in pools:
            # torch cannot gather float8 on CPUs; its bytes it can.
            stored = pool.view(torch.uint8)[page, :, row].view(pool.dtype).float()
            out.append(stored if scale is None else stored * scale[page, :, row].unsqueeze(-1))
        return torch.stack(out)

    def run() -> None:
        cache.append(0, inputs.key, inputs.value, step)

    return PagedCall(run, read_back, cache.nbytes)
