"""flash_attn_with_kvcache, and flash_attn_varlen_func with a block table, against an eager oracle."""

from __future__ import annotations

import inspect
import math

import pytest
import torch
from exact_attention import assert_matches, exact_attention
from paged_inputs import paged

import tileformer

BATCH, ROWS, HEADS, KV_HEADS, DIM = 3, 5, 6, 2, 32
ROOM = 80  # keys that each sequence can hold
HELD = torch.tensor([37, 0, 50], dtype=torch.int32)


def random(*shape, dtype=torch.float32, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def rotated(x, cos, sin, positions, interleaved):
    """x [seq, heads, dim] in float64, its row i rotated by positions[i]."""
    x, half = x.double().clone(), cos.shape[1]
    cos, sin = cos.double()[positions][:, None], sin.double()[positions][:, None]
    pair = (
        (slice(0, 2 * half, 2), slice(1, 2 * half, 2))
        if interleaved
        else (slice(half), slice(half, 2 * half))
    )
    a, b = x[..., pair[0]].clone(), x[..., pair[1]].clone()
    x[..., pair[0]], x[..., pair[1]] = a * cos - b * sin, b * cos + a * sin
    return x


class Caches:
    """The same contents as a contiguous cache [rows, seq, kv_heads, dim] or as pages with a table."""

    def __init__(self, kind: str, dtype: torch.dtype):
        self.rows = torch.tensor([4, 0, 2], dtype=torch.int32)
        dense = [random(BATCH, ROOM, KV_HEADS, DIM, dtype=dtype, seed=s) for s in (1, 2)]
        for tensor in dense:
            for n, held in enumerate(HELD):
                tensor[n, held:] = math.nan  # rows that were never written
        self.expected = [t.clone() for t in dense]
        self.table = None
        if kind == "pages":
            order = torch.randperm(BATCH * 5, generator=torch.Generator().manual_seed(3))
            self.table = order.view(BATCH, 5).to(torch.int32)
            self.given = [torch.full((17, 16, KV_HEADS, DIM), math.nan, dtype=dtype) for _ in dense]
            for given, tensor in zip(self.given, dense):
                given[self.table.long()] = tensor.view(BATCH, 5, 16, KV_HEADS, DIM)
            self.options = dict(block_table=self.table)
        elif kind == "rows":
            self.given = [torch.full((ROWS, ROOM, KV_HEADS, DIM), math.nan, dtype=dtype) for _ in dense]
            for given, tensor in zip(self.given, dense):
                given[self.rows.long()] = tensor
            self.options = dict(cache_batch_idx=self.rows)
        else:
            self.given, self.options = dense, {}

    def contents(self) -> list[torch.Tensor]:
        if self.table is not None:
            return [g[self.table.long()].flatten(1, 2) for g in self.given]
        return [g[self.rows.long()] if self.options else g for g in self.given]


OPTIONS = {
    "causal": dict(causal=True),
    "full": dict(),
    "causal_window": dict(causal=True, window_size=(12, -1), softcap=3.0),
    "window": dict(window_size=(12, 3), softmax_scale=0.4),
    "alibi": dict(causal=True, alibi_slopes=torch.linspace(0.1, 1.0, HEADS)),
}


@pytest.mark.parametrize("kind", ["batch", "rows", "pages"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("seq_q, seq_new", [(1, 1), (5, 5), (20, 20), (4, 9), (1, 0)])
def test_append_and_attend(kind, dtype, seq_q, seq_new):
    check_append_and_attend(kind, dtype, seq_q, seq_new, OPTIONS["causal"], None)


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("seq_q, seq_new", [(1, 1), (4, 9)])
@pytest.mark.parametrize("rotary", [None, "halves", "interleaved"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_options_and_rotary(dtype, name, seq_q, seq_new, rotary):
    check_append_and_attend("pages", dtype, seq_q, seq_new, OPTIONS[name], rotary)


def check_append_and_attend(kind, dtype, seq_q, seq_new, options, rotary):
    caches = Caches(kind, dtype)
    q = random(BATCH, seq_q, HEADS, DIM, dtype=dtype, seed=5)
    k, v = (random(BATCH, seq_new, KV_HEADS, DIM, dtype=dtype, seed=s) for s in (6, 7))
    new, interleaved = {}, rotary == "interleaved"
    if seq_new:
        new = dict(k=k, v=v, rotary_interleaved=interleaved)
    angles = torch.outer(
        torch.arange(ROOM + 8.0), 100.0 ** -torch.arange(0, 1, 1 / 12)
    )  # of 24 of 32 elements
    cos, sin = angles.cos().to(dtype), angles.sin().to(dtype)
    if rotary:
        new.update(rotary_cos=cos, rotary_sin=sin)
    out, lse = tileformer.flash_attn_with_kvcache(
        q, *caches.given, **new, cache_seqlens=HELD, **caches.options, **options, return_softmax_lse=True
    )
    assert out.shape == q.shape and out.dtype == dtype and lse.shape == (BATCH, HEADS, seq_q)

    local = options.get("causal", False) or "window_size" in options
    names = dict(softmax_scale="scale", window_size="window")
    oracle = {names.get(name, name): value for name, value in options.items()}
    for n, held in enumerate(HELD.tolist()):
        own_q, own_k = q[n].double(), k[n].double()
        if rotary:  # what is rotated is rounded to the dtype, as in FlashAttention-2
            at = held + torch.arange(seq_q) * local
            own_q = rotated(q[n], cos, sin, at, interleaved).to(dtype).double()
            own_k = rotated(k[n], cos, sin, held + torch.arange(seq_new), interleaved).to(dtype).double()
        length = held + seq_new
        keys = torch.cat((caches.expected[0][n, :held].double(), own_k))
        values = torch.cat((caches.expected[1][n, :held].double(), v[n].double()))
        assert_matches(caches.contents()[0][n, held:length], own_k)
        assert torch.equal(caches.contents()[1][n, held:length], v[n])
        for actual, before in zip(caches.contents(), caches.expected):
            assert torch.equal(actual[n, :held], before[n, :held])
            assert actual[n, length:].isnan().all()
        expected, expected_lse = exact_attention(
            *(t.transpose(0, 1)[None] for t in (own_q, keys, values)), **oracle
        )
        assert_matches(out[n], expected[0].transpose(0, 1))
        assert_matches(lse[n], expected_lse[0].masked_fill(expected_lse[0] == -math.inf, math.inf))


@pytest.mark.parametrize("kind", ["batch", "pages"])
@pytest.mark.parametrize("causal", [False, True])
def test_leftpad(kind, causal):
    caches = Caches(kind, torch.float32)
    pad = torch.tensor([30, 0, 3], dtype=torch.int32)
    q, k, v = (random(BATCH, 2, h, DIM, seed=s) for s, h in enumerate((HEADS, KV_HEADS, KV_HEADS)))
    out = tileformer.flash_attn_with_kvcache(
        q, *caches.given, k, v, cache_seqlens=HELD, cache_leftpad=pad, **caches.options, causal=causal
    )
    for n, held in enumerate(HELD.tolist()):
        keys, values = (
            torch.cat((old[n, pad[n] : held], new[n])) for old, new in zip(caches.expected, (k, v))
        )
        expected, _ = exact_attention(*(t.transpose(0, 1)[None] for t in (q[n], keys, values)), causal=causal)
        assert_matches(out[n], expected[0].transpose(0, 1))


def test_one_length_for_all_and_no_length():
    q, k_cache, v_cache = (
        random(2, n, h, DIM, seed=n) for n, h in ((1, HEADS), (9, KV_HEADS), (9, KV_HEADS))
    )
    for length, given in ((9, None), (9, 9), (4, 4), (4, torch.tensor([4, 4]))):
        out = tileformer.flash_attn_with_kvcache(q, k_cache, v_cache, cache_seqlens=given)
        expected, _ = exact_attention(
            *(t.transpose(1, 2) for t in (q, k_cache[:, :length], v_cache[:, :length]))
        )
        assert_matches(out, expected.transpose(1, 2))


def test_num_splits_changes_nothing():
    caches, q = Caches("pages", torch.bfloat16), random(BATCH, 1, HEADS, DIM, dtype=torch.bfloat16)
    outs = [
        tileformer.flash_attn_with_kvcache(
            q, *caches.given, cache_seqlens=HELD, **caches.options, num_splits=splits
        )
        for splits in (0, 1, 7)
    ]
    assert torch.equal(outs[0], outs[1]) and torch.equal(outs[0], outs[2])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("causal", [False, True])
def test_varlen_with_a_block_table(dtype, causal):
    lengths, counts = [37, 0, 64, 5], [5, 2, 20, 1]
    cache = paged(lengths, dtype=dtype)
    key, value = (pool.pages.transpose(1, 2).contiguous() for pool in (cache.key, cache.value))
    cu_q, cu_k = (torch.tensor([0, *torch.tensor(n).cumsum(0)], dtype=torch.int32) for n in (counts, lengths))
    q = random(sum(counts), HEADS, 32, dtype=dtype)
    out, lse, _ = tileformer.flash_attn_varlen_func(
        q,
        key,
        value,
        cu_q,
        cu_k,
        max(counts),
        max(lengths),
        causal=causal,
        window_size=(30, -1),
        return_attn_probs=True,
        block_table=cache.block_table,
    )
    for n in range(4):
        rows = slice(int(cu_q[n]), int(cu_q[n + 1]))
        expected, expected_lse = exact_attention(
            q[None, rows].transpose(1, 2),
            cache.key.dense[n][None],
            cache.value.dense[n][None],
            causal=causal,
            window=(30, -1),
        )
        assert_matches(out[rows], expected[0].transpose(0, 1))
        assert_matches(lse[:, rows], expected_lse[0].masked_fill(expected_lse[0] == -math.inf, math.inf))


def test_arguments_are_those_of_flash_attn_2():
    signature = inspect.signature(tileformer.flash_attn_with_kvcache)
    expected = (
        "q k_cache v_cache k v rotary_cos rotary_sin cache_seqlens cache_batch_idx cache_leftpad "
        "block_table softmax_scale causal window_size softcap rotary_interleaved alibi_slopes num_splits "
        "return_softmax_lse"
    )
    assert list(signature.parameters) == expected.split()
    defaults = {
        name: p.default for name, p in signature.parameters.items() if p.default not in (None, p.empty)
    }
    assert defaults == dict(
        causal=False,
        window_size=(-1, -1),
        softcap=0.0,
        rotary_interleaved=True,
        num_splits=0,
        return_softmax_lse=False,
    )


NEW = torch.zeros(BATCH, 1, KV_HEADS, DIM)
ANGLES = torch.ones(ROOM, 4)
ERRORS = {
    "k_alone": (dict(k=NEW, cache_seqlens=HELD), ["k and v"]),
    "no_lengths": (dict(k=NEW, v=NEW), ["cache_seqlens"]),
    "no_room": (dict(k=NEW, v=NEW, cache_seqlens=HELD + 30), ["cache_seqlens", "80", "79"]),
    "negative": (dict(k=NEW, v=NEW, cache_seqlens=-1), ["cache_seqlens", "-1"]),
    "too_long": (dict(cache_seqlens=81), ["key_lengths", "81", "80"]),
    "lengths_shape": (dict(cache_seqlens=HELD[:2]), ["cache_seqlens", "[2]", "[3]"]),
    "lengths_dtype": (dict(cache_seqlens=HELD.float()), ["cache_seqlens", "float32", "int32"]),
    "batch_idx_shape": (dict(cache_batch_idx=HELD[:2]), ["cache_batch_idx", "[2]", "[3]"]),
    "batch_idx_range": (dict(cache_batch_idx=HELD), ["block_table", "37"]),
    "idx_and_table": (
        dict(cache_batch_idx=HELD, block_table=HELD[:, None]),
        ["cache_batch_idx", "block_table"],
    ),
    "table_shape": (dict(block_table=HELD), ["block_table", "[3]", "[3, blocks]"]),
    "leftpad": (dict(cache_leftpad=HELD + 44), ["key_range", "81", "80"]),
    "rotary_alone": (dict(rotary_cos=ANGLES, rotary_sin=ANGLES), ["rotary_cos", "without k"]),
    "rotary_half": (dict(k=NEW, v=NEW, cache_seqlens=HELD, rotary_cos=ANGLES), ["rotary_cos and rotary_sin"]),
    "rotary_short": (
        dict(k=NEW, v=NEW, cache_seqlens=HELD, rotary_cos=ANGLES[:50], rotary_sin=ANGLES[:50]),
        ["positions", "50"],
    ),
    "new_shape": (dict(k=NEW[:2], v=NEW[:2], cache_seqlens=HELD), ["k and v", "[2, 1, 2, 32]"]),
    "new_heads": (dict(k=NEW[:, :, :1], v=NEW, cache_seqlens=HELD), ["key"]),
    "window": (dict(window_size=3), ["window_size", "3"]),
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors(name):
    options, words = ERRORS[name]
    caches = Caches("batch", torch.float32)
    before = [t.clone() for t in caches.given]
    with pytest.raises(ValueError) as caught:
        tileformer.flash_attn_with_kvcache(random(BATCH, 1, HEADS, DIM), *caches.given, **options)
    for word in words:
        assert word in str(caught.value)
    for tensor, copy in zip(caches.given, before):
        assert torch.equal(tensor.isnan(), copy.isnan())


def test_more_errors():
    caches, q = Caches("batch", torch.float32), random(BATCH, 1, HEADS, DIM)
    with pytest.raises(ValueError, match=r"q has 3 dimensions"):
        tileformer.flash_attn_with_kvcache(q[0], *caches.given)
    with pytest.raises(ValueError, match=r"k_cache has batch 2, but q has 3"):
        tileformer.flash_attn_with_kvcache(q, *(t[:2] for t in caches.given))
    with pytest.raises(RuntimeError, match=r"q requires grad.*no_grad"):
        tileformer.flash_attn_with_kvcache(q.clone().requires_grad_(), *caches.given)
    pages = paged([9])
    key, cu = pages.key.pages.transpose(1, 2), torch.tensor([0, 1], dtype=torch.int32)
    arguments = (random(1, 4, 32), key, key, cu, cu * 9, 1, 9)
    with pytest.raises(ValueError, match=r"dropout_p is 0.1"):
        tileformer.flash_attn_varlen_func(*arguments, dropout_p=0.1, block_table=pages.block_table)
    with pytest.raises(ValueError, match=r"k has 3 dimensions.*page_size"):
        tileformer.flash_attn_varlen_func(
            *arguments[:1], key[0], key[0], *arguments[3:], block_table=pages.block_table
        )


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["rows", "pages"])
def test_compiled(kind):
    def step(q, k, v, k_cache, v_cache, lengths, rotary, options):
        out = tileformer.flash_attn_with_kvcache(
            q * 2, k_cache, v_cache, k, v, *rotary, lengths, causal=True, **options
        )
        return out.sin()

    q, k, v = (random(BATCH, 3, h, DIM, seed=h) for h in (HEADS, KV_HEADS, KV_HEADS))
    rotary = ANGLES, ANGLES * 0.5
    eager, compiled = Caches(kind, torch.float32), Caches(kind, torch.float32)
    expected = step(q, k, v, *eager.given, HELD, rotary, eager.options)
    run = torch.compile(step, fullgraph=True, backend="aot_eager")
    actual = run(q, k, v, *compiled.given, HELD, rotary, compiled.options)
    torch.testing.assert_close(actual, expected)
    for x, y in zip(compiled.given, eager.given):
        assert torch.equal(x.nan_to_num(), y.nan_to_num())


def small_cache():
    cache = torch.zeros(2, 16, 1, 32)
    return torch.zeros(2, 1, 1, 32), cache, cache.clone()


@pytest.mark.parametrize(
    "arguments",
    [
        {"cache_seqlens": torch.tensor([2**32 + 3, 5])},
        {"cache_seqlens": torch.tensor([3.0, 5.0])},
        {"cache_seqlens": [3, 5]},
        {"cache_seqlens": True},
        {"cache_seqlens": 3.5},
        {"cache_seqlens": 5, "cache_leftpad": [1, 0]},
        {"cache_seqlens": 5, "cache_batch_idx": torch.tensor([2**32 + 1, 0])},
        {"cache_seqlens": 5, "block_table": torch.tensor([[2**32 + 1], [0]])},
        {"cache_seqlens": 5, "block_table": torch.tensor([[1.7], [0.0]])},
    ],
    ids=str,
)
def test_indices_are_never_cut_off(arguments):
    name = list(arguments)[-1]
    with pytest.raises(ValueError, match=f"^{name} "):
        tileformer.flash_attn_with_kvcache(*small_cache(), **arguments)


def test_two_sequences_cannot_write_into_one_row():
    q, k_cache, v_cache = small_cache()
    index = torch.tensor([1, 1], dtype=torch.int32)
    tileformer.flash_attn_with_kvcache(q, k_cache, v_cache, cache_seqlens=5, cache_batch_idx=index)  # reads
    with pytest.raises(ValueError, match=r"cache_batch_idx is \[1, 1\]"):
        tileformer.flash_attn_with_kvcache(q, k_cache, v_cache, q, q, cache_seqlens=5, cache_batch_idx=index)


def test_an_empty_prefix_merges_into_nothing():
    torch.manual_seed(0)
    q, k, v = torch.randn(1, 1, 2, 32), torch.randn(1, 64, 2, 32), torch.randn(1, 64, 2, 32)
    parts = [
        tileformer.flash_attn_with_kvcache(q, k, v, cache_seqlens=n, return_softmax_lse=True) for n in (0, 60)
    ]
    out, lse = tileformer.merge_attention_states([o.transpose(1, 2) for o, _ in parts], [p for _, p in parts])
    assert torch.equal(out.transpose(1, 2), parts[1][0]) and torch.equal(lse, parts[1][1])
