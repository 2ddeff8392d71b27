"""FlashAttention-2's functions: layout, packed forms, variable lengths, return values."""

from __future__ import annotations

import inspect
import math

import pytest
import torch
from exact_attention import assert_matches, exact_attention

import tileformer


def bshd(batch, seq, heads, dim, seed, dtype=torch.float32):
    return torch.randn(batch, seq, heads, dim, generator=torch.Generator().manual_seed(seed)).to(dtype)


def exact_bshd(q, k, v, **options):
    out, lse = exact_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), **options)
    return out.transpose(1, 2), lse


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("lengths", [(13, 29), (29, 13)], ids=str)
def test_flash_attn_func(dtype, causal, lengths):
    q, k, v = (
        bshd(2, n, h, 32, s, dtype)
        for s, (n, h) in enumerate(((lengths[0], 6), (lengths[1], 2), (lengths[1], 2)))
    )
    out, lse, probs = tileformer.flash_attn_func(
        q, k, v, softmax_scale=0.2, causal=causal, window_size=(9, -1), softcap=4.0, return_attn_probs=True
    )
    expected, expected_lse = exact_bshd(q, k, v, scale=0.2, causal=causal, window=(9, -1), softcap=4.0)
    assert probs is None and out.is_contiguous()
    assert_matches(out, expected)
    assert_matches(lse, expected_lse.masked_fill(expected_lse == -math.inf, math.inf))


def test_alibi():
    q, k, v = bshd(2, 11, 4, 16, 0), bshd(2, 17, 4, 16, 1), bshd(2, 17, 4, 16, 2)
    slopes = torch.tensor([0.5, 0.25, 0.125, 0.0625])
    out = tileformer.flash_attn_func(q, k, v, causal=True, alibi_slopes=slopes)
    assert_matches(out, exact_bshd(q, k, v, causal=True, alibi_slopes=slopes)[0])


def test_packed_forms_are_views():
    qkv = torch.randn(2, 15, 3, 4, 16)
    q, k, v = qkv.unbind(2)
    expected = tileformer.flash_attn_func(q, k, v, causal=True)
    assert torch.equal(tileformer.flash_attn_qkvpacked_func(qkv, causal=True), expected)
    kv = torch.stack((k, v), 2)
    assert torch.equal(tileformer.flash_attn_kvpacked_func(q, kv, causal=True), expected)


@pytest.mark.parametrize("index_dtype", [torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize("causal", [False, True])
def test_variable_lengths(index_dtype, causal):
    lengths_q, lengths_k = [5, 0, 17, 1, 9], [8, 3, 17, 40, 0]
    cu_q = torch.tensor([0, *torch.tensor(lengths_q).cumsum(0)], dtype=index_dtype)
    cu_k = torch.tensor([0, *torch.tensor(lengths_k).cumsum(0)], dtype=index_dtype)
    q, k, v = (
        torch.randn(n, h, 24) for n, h in ((sum(lengths_q), 4), (sum(lengths_k), 2), (sum(lengths_k), 2))
    )
    out, lse, _ = tileformer.flash_attn_varlen_func(
        q, k, v, cu_q, cu_k, max(lengths_q), max(lengths_k), causal=causal, return_attn_probs=True
    )
    assert out.shape == q.shape and lse.shape == (4, sum(lengths_q))
    for i, (n, m) in enumerate(zip(lengths_q, lengths_k)):
        rows, keys = slice(int(cu_q[i]), int(cu_q[i]) + n), slice(int(cu_k[i]), int(cu_k[i]) + m)
        expected, expected_lse = exact_bshd(q[None, rows], k[None, keys], v[None, keys], causal=causal)
        assert_matches(out[rows], expected[0])
        assert_matches(lse[:, rows], expected_lse[0].masked_fill(expected_lse[0] == -math.inf, math.inf))
        if m:
            alone = tileformer.flash_attn_func(q[None, rows], k[None, keys], v[None, keys], causal=causal)
            assert torch.equal(alone[0], out[rows])


def test_variable_length_packed_forms():
    cu = torch.tensor([0, 4, 11], dtype=torch.int32)
    qkv = torch.randn(11, 3, 2, 16)
    q, k, v = qkv.unbind(1)
    expected = tileformer.flash_attn_varlen_func(q, k, v, cu, cu, 7, 7, causal=True)
    assert torch.equal(tileformer.flash_attn_varlen_qkvpacked_func(qkv, cu, 7, causal=True), expected)
    kv = torch.stack((k, v), 1)
    assert torch.equal(tileformer.flash_attn_varlen_kvpacked_func(q, kv, cu, cu, 7, 7, causal=True), expected)


def test_arguments_are_those_of_flash_attn_2():
    tail = ["dropout_p", "softmax_scale", "causal", "window_size", "softcap", "alibi_slopes", "deterministic"]
    tail.append("return_attn_probs")
    lengths = ["cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q", "max_seqlen_k"]
    expected = {
        "flash_attn_func": ["q", "k", "v", *tail],
        "flash_attn_varlen_func": ["q", "k", "v", *lengths, *tail, "block_table"],
        "flash_attn_qkvpacked_func": ["qkv", *tail],
        "flash_attn_kvpacked_func": ["q", "kv", *tail],
        "flash_attn_varlen_qkvpacked_func": ["qkv", "cu_seqlens", "max_seqlen", *tail],
        "flash_attn_varlen_kvpacked_func": ["q", "kv", *lengths, *tail],
    }
    for name, arguments in expected.items():
        assert list(inspect.signature(getattr(tileformer, name)).parameters) == arguments
