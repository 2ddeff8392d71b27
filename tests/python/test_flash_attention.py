"""flash_attention against float64 attention, over shapes, dtypes, masks, options and memory layouts."""

from __future__ import annotations

import math

import pytest
import torch
from exact_attention import assert_matches, exact_attention

import tileformer

DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float64]


def tensors(batch, heads, kv_heads, seq_q, seq_k, dim, dim_v=None, dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    shapes = (
        (batch, heads, seq_q, dim),
        (batch, kv_heads, seq_k, dim),
        (batch, kv_heads, seq_k, dim_v or dim),
    )
    return tuple(torch.randn(s, generator=generator).to(dtype) for s in shapes)


def check(q, k, v, **options):
    out, lse = tileformer.flash_attention(q, k, v, return_lse=True, **options)
    expected, expected_lse = exact_attention(q, k, v, **options)
    assert out.dtype == q.dtype and lse.dtype == (
        torch.float64 if q.dtype == torch.float64 else torch.float32
    )
    assert_matches(out, expected)
    assert_matches(lse, expected_lse)
    assert torch.equal(out, tileformer.flash_attention(q, k, v, **options))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    "shape",
    [
        # batch, heads, kv_heads, seq_q, seq_k, dim, dim_v
        (1, 1, 1, 1, 1, 1, 1),
        (2, 3, 3, 7, 7, 16, 16),
        (1, 2, 2, 33, 65, 64, 64),
        (2, 4, 1, 17, 40, 80, 80),
        (1, 6, 2, 5, 130, 96, 96),
        (1, 7, 1, 1, 257, 128, 128),
        (1, 8, 2, 70, 70, 192, 128),
        (1, 2, 1, 9, 20, 320, 256),
        (1, 2, 1, 4, 12, 576, 512),
        (1, 32, 4, 3, 3, 37, 5),
    ],
    ids=str,
)
@pytest.mark.parametrize("causal", [False, True, "top_left"], ids=str)
def test_shapes(dtype, shape, causal):
    check(*tensors(*shape, dtype=dtype), causal=causal)


OPTIONS = {
    "scale": dict(scale=0.3125),
    "scale_negative": dict(scale=-0.1875),
    "window": dict(window=(5, 3)),
    "window_left": dict(window=(7, -1), causal=True),
    "window_top_left": dict(window=(4, 0), causal="top_left"),
    "softcap": dict(softcap=3.0),
    "alibi": dict(alibi_slopes=torch.tensor([0.5, 0.25, 0.125, 0.0625])),
    "alibi_batch": dict(alibi_slopes=torch.linspace(0, 1, 8).reshape(2, 4), causal=True),
    "sinks": dict(sinks=torch.tensor([1.0, -2.0, 0.0, 4.0])),
    "sinks_bfloat16_causal": dict(
        sinks=torch.tensor([1.0, -2.0, 0.0, 4.0], dtype=torch.bfloat16), causal=True
    ),
    "everything": dict(
        scale=0.1875,
        causal=True,
        window=(20, -1),
        softcap=5.0,
        sinks=torch.ones(4),
        alibi_slopes=torch.full((4,), 0.1),
    ),
}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("lengths", [(25, 41), (41, 25)], ids=str)
def test_options(dtype, name, lengths):
    check(*tensors(2, 4, 2, *lengths, 24, dtype=dtype), **OPTIONS[name])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kind", ["bool", "float", "float_inf"])
@pytest.mark.parametrize(
    "shape",
    [(2, 4, 19, 35), (1, 1, 19, 35), (2, 1, 1, 35), (1, 4, 19, 1), (4, 1, 35), (19, 35), (35,), ()],
    ids=str,
)
def test_masks(dtype, kind, shape):
    generator = torch.Generator().manual_seed(1)
    noise = torch.randn(shape, generator=generator)
    mask = noise > -0.5 if kind == "bool" else noise
    if kind == "float_inf":
        mask = mask.masked_fill(noise < -0.5, -math.inf)
    check(*tensors(2, 4, 2, 19, 35, 32, dtype=dtype), attn_mask=mask)


def test_mask_is_read_where_it_lies():
    q, k, v = tensors(2, 4, 2, 19, 35, 32)
    wide = torch.rand(2, 40, 3, 19) > 0.4
    mask = wide[:, :35, 1:2].permute(0, 2, 3, 1)  # keys outermost, one head out of three
    assert not mask.is_contiguous()
    check(q, k, v, attn_mask=mask)
    check(q, k, v, attn_mask=(torch.rand(19, 1) > 0.4).expand(19, 35))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_rows_that_see_nothing(dtype):
    q, k, v = tensors(1, 2, 2, 6, 5, 16, dtype=dtype)
    mask = torch.rand(6, 5) > 0.3
    mask[2] = False
    check(q, k, v, attn_mask=mask)
    out, lse = tileformer.flash_attention(q, k, v, attn_mask=mask, return_lse=True)
    assert (out[:, :, 2] == 0).all() and (lse[:, :, 2] == -math.inf).all()
    check(q, k, v, attn_mask=mask, sinks=torch.tensor([0.5, -0.5]))


@pytest.mark.parametrize(
    "shape", [(0, 2, 2, 4, 4, 8), (1, 2, 2, 0, 4, 8), (1, 2, 2, 4, 0, 8), (2, 0, 2, 5, 5, 8)], ids=str
)
def test_sizes_of_zero(shape):
    check(*tensors(*shape))


LAYOUTS = {
    "bshd": lambda t: t.transpose(1, 2).contiguous().transpose(1, 2),
    "sbhd": lambda t: t.permute(2, 0, 1, 3).contiguous().permute(1, 2, 0, 3),
    "padded_rows": lambda t: torch.nn.functional.pad(t, (0, 5))[..., : t.shape[-1]],
    "sliced_sequence": lambda t: torch.nn.functional.pad(t, (0, 0, 3, 2))[:, :, 3:-2],
    "dim_not_innermost": lambda t: t.transpose(-1, -2).contiguous().transpose(-1, -2),
    "every_second": lambda t: t.repeat_interleave(2, -1)[..., ::2],
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_memory_layouts(layout, dtype):
    q, k, v = tensors(2, 4, 2, 18, 30, 40, dtype=dtype)
    plain = tileformer.flash_attention(q, k, v, causal=True)
    moved = tuple(LAYOUTS[layout](t) for t in (q, k, v))
    assert all(torch.equal(a, b) for a, b in zip((q, k, v), moved))
    out = tileformer.flash_attention(*moved, causal=True)
    assert torch.equal(out, plain)


@pytest.mark.parametrize("layout", ["bshd", "sbhd"])
def test_out_keeps_the_layout_of_query(layout):
    q, k, v = (LAYOUTS[layout](t) for t in tensors(2, 4, 4, 18, 30, 40))
    out = tileformer.flash_attention(q, k, v)
    assert out.stride() == torch.empty_like(q).stride() == q.stride()


def test_expanded_batch_and_heads():
    q, k, v = tensors(1, 4, 1, 9, 9, 16)
    q3 = q.expand(3, -1, -1, -1)
    out = tileformer.flash_attention(q3, k.expand(3, 4, -1, -1), v.expand(3, 4, -1, -1))
    assert torch.equal(out, tileformer.flash_attention(q, k, v).expand(3, -1, -1, -1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_same_bits_alone_and_in_a_batch(dtype):
    q, k, v = tensors(5, 4, 2, 37, 61, 64, dtype=dtype)
    whole = tileformer.flash_attention(q, k, v, causal=True)
    for b in range(5):
        alone = tileformer.flash_attention(q[b : b + 1], k[b : b + 1], v[b : b + 1], causal=True)
        assert torch.equal(alone, whole[b : b + 1])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_excluded_positions_have_no_influence(dtype):
    q, k, v = tensors(1, 2, 2, 12, 20, 32, dtype=dtype)
    mask = torch.ones(12, 20, dtype=torch.bool)
    mask[:, 4:7] = False
    expected = tileformer.flash_attention(q, k, v, attn_mask=mask)
    for poison in (math.nan, math.inf, -math.inf):
        bad_k, bad_v = k.clone(), v.clone()
        bad_k[:, :, 4:7] = poison
        bad_v[:, :, 4:7] = poison
        assert torch.equal(tileformer.flash_attention(q, bad_k, bad_v, attn_mask=mask), expected)
        bias = torch.zeros(12, 20).masked_fill(~mask, -math.inf)
        assert torch.equal(tileformer.flash_attention(q, bad_k, bad_v, attn_mask=bias), expected)


def test_nan_in_a_seen_position_shows_where_it_is_seen():
    q, k, v = tensors(1, 1, 1, 10, 10, 16)
    v[0, 0, 6] = math.nan
    out = tileformer.flash_attention(q, k, v, causal=True)
    assert out[0, 0, :6].isfinite().all() and out[0, 0, 6:].isnan().all()


def test_dropout_follows_the_seed_and_keeps_the_mean():
    q, k, v = tensors(1, 2, 2, 64, 64, 16)
    torch.manual_seed(5)
    first, second = (tileformer.flash_attention(q, k, v, dropout_p=0.25) for _ in range(2))
    torch.manual_seed(5)
    again = tileformer.flash_attention(q, k, v, dropout_p=0.25)
    assert torch.equal(first, again) and not torch.equal(first, second)
    ones = torch.ones_like(v)
    kept = tileformer.flash_attention(
        q * 0, k, ones, dropout_p=0.25
    )  # uniform weights: mean of the kept ones
    assert abs(kept.mean().item() - 1) < 0.03 and kept.std().item() > 0.01
    assert torch.equal(
        tileformer.flash_attention(q, k, v, dropout_p=0.0), tileformer.flash_attention(q, k, v)
    )
