"""paged_attention against float64 attention over the gathered keys and values of each sequence."""

from __future__ import annotations

import pytest
import torch
from exact_attention import assert_matches, exact_attention
from paged_inputs import QUANTISED, paged

import tileformer

FLOATS = [torch.float32, torch.bfloat16, torch.float16]
LENGTHS = [37, 0, 64, 5, 150]


def queries(counts, heads=4, dim=32, dtype=torch.float32, seed=9):
    """[tokens, heads, dim] and cu_seqlens."""
    generator = torch.Generator().manual_seed(seed)
    query = torch.randn(sum(counts), heads, dim, generator=generator).to(dtype)
    return query, torch.tensor([0, *torch.tensor(counts).cumsum(0)], dtype=torch.int32)


def expect(out, lse, query, cu, cache, **options):
    """Compares every sequence with exact attention over its own keys."""
    per_sequence = {"attn_mask", "diagonal"}
    # Decode rounds what it multiplies int8 with to 15 bits.
    coarse = torch.int8 in (cache.key.pages.dtype, cache.value.pages.dtype) and out.dtype == torch.float32
    tolerance = 1e-4 if coarse else None
    for n, length in enumerate(cache.key_lengths.tolist()):
        rows = slice(int(cu[n]), int(cu[n + 1]))
        own = {k: v[n] if k in per_sequence else v for k, v in options.items()}
        expected, expected_lse = exact_attention(
            query[None, rows].transpose(1, 2), cache.key.dense[n][None], cache.value.dense[n][None], **own
        )
        assert_matches(out[rows].transpose(0, 1)[None], expected, tolerance)
        assert_matches(lse[None, :, rows], expected_lse, tolerance)
        assert cache.key.dense[n].shape[1] == length


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("page_size", [16, 48, 64, 256])
@pytest.mark.parametrize("tokens", [1, 3, 16, 40])
def test_dtypes_page_sizes_query_lengths(dtype, page_size, tokens):
    cache = paged(LENGTHS, page_size=page_size, dtype=dtype)
    query, cu = queries([tokens] * len(LENGTHS), dtype=dtype)
    out, lse = tileformer.paged_attention(
        query, *cache.arguments(), cu_seqlens_query=cu, causal=True, return_lse=True
    )
    assert out.dtype == dtype and out.is_contiguous()
    expect(out, lse, query, cu, cache, causal=True)
    batch = query.view(len(LENGTHS), tokens, 4, 32).transpose(1, 2)
    batched, batched_lse = tileformer.paged_attention(batch, *cache.arguments(), causal=True, return_lse=True)
    assert torch.equal(batched.transpose(1, 2).flatten(0, 1), out)
    assert torch.equal(batched_lse.transpose(0, 1).flatten(1, 2), lse)


OPTIONS = {
    "plain": dict(),
    "scale": dict(scale=0.3),
    "causal": dict(causal=True),
    "top_left": dict(causal="top_left"),
    "window": dict(causal=True, window=(20, -1)),
    "window_both": dict(window=(11, 4)),
    "softcap": dict(softcap=2.0),
    "sinks": dict(causal=True, sinks=torch.tensor([0.5, -1.0, 3.0, 0.0])),
    "alibi": dict(causal=True, alibi_slopes=torch.tensor([0.5, 0.25, 0.1, 0.01])),
    "all": dict(
        causal=True,
        window=(40, -1),
        softcap=5.0,
        sinks=torch.tensor([0.5, -1.0, 3.0, 0.0]),
        alibi_slopes=torch.tensor([0.5, 0.25, 0.1, 0.01]),
    ),
}


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("counts", [[1] * 5, [2, 5, 0, 9, 16], [40, 1, 30, 7, 2]], ids=str)
def test_options(name, counts):
    cache = paged(LENGTHS)
    query, cu = queries(counts)
    out, lse = tileformer.paged_attention(
        query, *cache.arguments(), cu_seqlens_query=cu, return_lse=True, **OPTIONS[name]
    )
    expect(out, lse, query, cu, cache, **OPTIONS[name])


@pytest.mark.parametrize("heads, kv_heads", [(4, 4), (6, 2), (14, 2), (8, 1), (32, 1)])
@pytest.mark.parametrize("dim, dim_v", [(32, 32), (24, 40), (80, 80), (128, 64)])
def test_groups_and_dims(heads, kv_heads, dim, dim_v):
    cache = paged(LENGTHS, kv_heads=kv_heads, dim=dim, dim_v=dim_v, dtype=torch.bfloat16)
    query, cu = queries([1, 2, 3, 4, 5], heads, dim, torch.bfloat16)
    out, lse = tileformer.paged_attention(
        query, *cache.arguments(), cu_seqlens_query=cu, causal=True, return_lse=True
    )
    expect(out, lse, query, cu, cache, causal=True)


@pytest.mark.parametrize("mask_dtype", [torch.bool, torch.float32], ids=str)
@pytest.mark.parametrize("tokens", [1, 8])
def test_mask(mask_dtype, tokens):
    cache = paged(LENGTHS)
    query, cu = queries([tokens] * 5)
    generator = torch.Generator().manual_seed(1)
    mask = torch.rand(5, 1, tokens, max(LENGTHS), generator=generator)
    mask = mask > 0.4 if mask_dtype == torch.bool else mask * 3
    own = [mask[n, :, :, :length] for n, length in enumerate(LENGTHS)]
    batch = query.view(5, tokens, 4, 32).transpose(1, 2)
    out, lse = tileformer.paged_attention(batch, *cache.arguments(), attn_mask=mask, return_lse=True)
    out, lse = out.transpose(1, 2).flatten(0, 1), lse.transpose(0, 1).flatten(1, 2)
    expect(out, lse, query, cu, cache, attn_mask=own)


def test_key_range_and_query_offset():
    cache = paged(LENGTHS)
    query, cu = queries([4] * 5)
    ranges = torch.tensor([[3, 30], [0, 0], [60, 64], [5, 5], [0, 149]], dtype=torch.int32)
    offset = torch.tensor([7, 0, 61, 2, 146], dtype=torch.int32)
    out, lse = tileformer.paged_attention(
        query,
        *cache.arguments(),
        cu_seqlens_query=cu,
        causal=True,
        key_range=ranges,
        query_offset=offset,
        return_lse=True,
    )
    masks = []
    for (first, last), length in zip(ranges.tolist(), LENGTHS):
        keys = torch.arange(length)
        masks.append(((keys >= first) & (keys < last)).expand(4, length))
    expect(out, lse, query, cu, cache, causal=True, attn_mask=masks, diagonal=offset.tolist())


@pytest.mark.parametrize("stored", QUANTISED, ids=str)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("tokens", [1, 20])
def test_quantised_pages(stored, dtype, tokens):
    cache = paged(LENGTHS, dtype=stored)
    query, cu = queries([tokens] * 5, dtype=dtype)
    out, lse = tileformer.paged_attention(
        query, *cache.arguments(), cu_seqlens_query=cu, causal=True, return_lse=True, **cache.scales()
    )
    expect(out, lse, query, cu, cache, causal=True)


@pytest.mark.parametrize(
    "key_dtype, value_dtype",
    [(torch.int8, torch.bfloat16), (torch.bfloat16, torch.float8_e4m3fn), (torch.float32, torch.float16)],
    ids=str,
)
def test_key_and_value_of_different_dtypes(key_dtype, value_dtype):
    cache = paged(LENGTHS, dtype=key_dtype, value_dtype=value_dtype)
    query, cu = queries([1, 2, 3, 20, 5], dtype=torch.bfloat16)
    out, lse = tileformer.paged_attention(
        query, *cache.arguments(), cu_seqlens_query=cu, return_lse=True, **cache.scales()
    )
    expect(out, lse, query, cu, cache)


def test_pages_of_flash_attention_layout_are_read_in_place():
    cache = paged(LENGTHS)
    key, value = (p.pages.transpose(1, 2).contiguous().transpose(1, 2) for p in (cache.key, cache.value))
    query, cu = queries([2] * 5)
    expected = tileformer.paged_attention(query, *cache.arguments(), cu_seqlens_query=cu)
    out = tileformer.paged_attention(query, key, value, *cache.arguments()[2:], cu_seqlens_query=cu)
    assert torch.equal(out, expected)


def test_a_contiguous_cache_is_a_pool():
    query, key, value = torch.randn(3, 4, 2, 16), torch.randn(5, 2, 23, 16), torch.randn(5, 2, 23, 16)
    rows, lengths = torch.tensor([4, 0, 2], dtype=torch.int32), torch.tensor([23, 9, 1], dtype=torch.int32)
    out = tileformer.paged_attention(query, key, value, rows[:, None], lengths, causal=True)
    for n in range(3):
        own = slice(int(rows[n]), int(rows[n]) + 1), slice(None), slice(int(lengths[n]))
        expected, _ = exact_attention(query[n : n + 1], key[own], value[own], causal=True)
        assert_matches(out[n : n + 1], expected)


def test_a_sequence_does_not_depend_on_the_others():
    cache = paged(LENGTHS)
    query, cu = queries([1, 3, 2, 20, 1])
    out = tileformer.paged_attention(query, *cache.arguments(), cu_seqlens_query=cu, causal=True)
    threads = torch.get_num_threads()
    for n in range(5):
        rows = slice(int(cu[n]), int(cu[n + 1]))
        torch.set_num_threads(1 + n % 2)
        alone = tileformer.paged_attention(
            query[rows],
            cache.key.pages,
            cache.value.pages,
            cache.block_table[n : n + 1],
            cache.key_lengths[n : n + 1],
            cu_seqlens_query=torch.tensor([0, rows.stop - rows.start]),
            causal=True,
        )
        assert torch.equal(alone, out[rows])
    torch.set_num_threads(threads)


def test_nothing_to_do():
    cache = paged([3, 20])
    query, cu = queries([0, 0])
    out = tileformer.paged_attention(query, *cache.arguments(), cu_seqlens_query=cu)
    assert out.shape == query.shape
    cache = paged([])
    query, cu = queries([])
    out = tileformer.paged_attention(query, *cache.arguments(), cu_seqlens_query=cu)
    assert out.shape == query.shape


def test_explain():
    cache = paged(LENGTHS)
    query, cu = queries([1] * 5)
    text = tileformer.explain(
        tileformer.paged_attention, query, *cache.arguments(), cu_seqlens_query=cu, causal=True
    )
    assert "attention_paged" in text and "key_pages" in text and tileformer.isa() in text


# Errors

QUERY = torch.randn(2, 4, 1, 16)
POOL = torch.randn(6, 2, 16, 16)
CODES, SCALE = torch.zeros(6, 2, 16, 16, dtype=torch.int8), torch.ones(6, 2, 16)
TABLE = torch.tensor([[0, 1], [4, 5]], dtype=torch.int32)
LENGTH = torch.tensor([20, 32], dtype=torch.int32)

ERRORS = {
    "length_beyond_table": (QUERY, POOL, POOL, TABLE, LENGTH + 1, {}, ["key_lengths", "33", "32"]),
    "negative_length": (QUERY, POOL, POOL, TABLE, -LENGTH, {}, ["key_lengths", "-20"]),
    "page_beyond_pool": (QUERY, POOL, POOL, TABLE + 1, LENGTH, {}, ["block_table", "6", "5"]),
    "negative_page": (QUERY, POOL, POOL, TABLE - 1, LENGTH, {}, ["block_table", "-1"]),
    "table_dtype": (QUERY, POOL, POOL, TABLE.long(), LENGTH, {}, ["block_table", "int64", "int32"]),
    "table_rows": (QUERY, POOL, POOL, TABLE[:1], LENGTH, {}, ["block_table", "2"]),
    "table_rank": (QUERY, POOL, POOL, TABLE[0], LENGTH, {}, ["block_table", "1", "2"]),
    "length_rows": (QUERY, POOL, POOL, TABLE, LENGTH[:1], {}, ["key_lengths", "2"]),
    "page_size": (QUERY, POOL[:, :, :10], POOL[:, :, :10], TABLE, LENGTH, {}, ["10", "multiple of 16"]),
    "pool_rank": (QUERY, POOL[0], POOL[0], TABLE, LENGTH, {}, ["key_pages", "3", "page_size"]),
    "query_rank": (QUERY[0], POOL, POOL, TABLE, LENGTH, {}, ["query", "3", "4"]),
    "rows_not_adjacent": (
        QUERY,
        POOL.transpose(2, 3),
        POOL.transpose(2, 3),
        TABLE,
        LENGTH,
        {},
        ["key", "stride 16"],
    ),
    "scale_missing": (QUERY, CODES, POOL, TABLE, LENGTH, {}, ["key_scale", "int8"]),
    "scale_unused": (QUERY, POOL, POOL, TABLE, LENGTH, dict(value_scale=SCALE), ["value_scale", "nothing"]),
    "scale_shape": (
        QUERY,
        CODES,
        POOL,
        TABLE,
        LENGTH,
        dict(key_scale=SCALE[:, :1]),
        ["key_scale", "[6, 1, 16]", "[6, 2, 16]"],
    ),
    "page_dtype": (QUERY, POOL.double(), POOL, TABLE, LENGTH, {}, ["key", "float64"]),
    "causal": (QUERY, POOL, POOL, TABLE, LENGTH, dict(causal="left"), ["causal", "left"]),
    "key_range": (
        QUERY,
        POOL,
        POOL,
        TABLE,
        LENGTH,
        dict(key_range=torch.tensor([[0, 21], [0, 1]], dtype=torch.int32)),
        ["key_range", "21", "20"],
    ),
    "packed_batch": (QUERY, POOL, POOL, TABLE, LENGTH, dict(cu_seqlens_query=LENGTH), ["query", "batch 2"]),
    "packed_without_offsets": (QUERY[0], POOL, POOL, TABLE, LENGTH, {}, ["[tokens, heads, dim] with cu_seq"]),
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors(name):
    *tensors, options, words = ERRORS[name]
    with pytest.raises(ValueError) as caught:
        tileformer.paged_attention(*tensors, **options)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize("argument", ["query", "key_pages", "value_pages", "attn_mask", "sinks"])
def test_gradients_are_refused(argument):
    tensors = dict(query=QUERY, key_pages=POOL, value_pages=POOL, block_table=TABLE, key_lengths=LENGTH)
    more = dict(attn_mask=torch.zeros(1, 32), sinks=torch.zeros(4))
    given = {**tensors, **more}
    given[argument] = given[argument].clone().requires_grad_()
    with pytest.raises(RuntimeError, match=rf"{argument} requires grad.*no_grad"):
        tileformer.paged_attention(**given)
    with torch.no_grad():
        tileformer.paged_attention(**given)


def test_devices_are_refused():
    with pytest.raises(ValueError, match="CPU"):
        tileformer.paged_attention(QUERY, POOL.to("meta"), POOL, TABLE, LENGTH)
