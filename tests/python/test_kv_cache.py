"""PagedKVCache: sequences that grow, fork, shrink, move out and back, against dense keys and values."""

from __future__ import annotations

import copy
import gc
import pickle
import threading

import pytest
import torch
from exact_attention import assert_matches, exact_attention
from paged_inputs import QUANTISED, quantise

import tileformer

LAYERS, KV_HEADS, HEADS, DIM = 2, 2, 6, 16
OPS = torch.ops.tileformer


class Mirror:
    """A cache beside dense copies of what was put into it.

    dense[layer][id]: (key, value), [tokens, kv_heads, dim].
    """

    def __init__(self, num_pages=40, page_size=16, dtype=torch.float32, v_head_dim=None, **options):
        self.cache = tileformer.PagedKVCache(
            LAYERS,
            KV_HEADS,
            DIM,
            v_head_dim=v_head_dim,
            num_pages=num_pages,
            page_size=page_size,
            dtype=dtype,
            **options,
        )
        self.dims = DIM, v_head_dim or DIM
        self.input = torch.float32 if dtype in QUANTISED else dtype
        self.dense = [{} for _ in range(LAYERS)]

    def add(self):
        id = self.cache.add()
        for layer in self.dense:
            layer[id] = tuple(torch.zeros(0, KV_HEADS, d, dtype=self.input) for d in self.dims)
        return id

    def fork(self, id, length=None):
        copy = self.cache.fork(id, length)
        for layer in self.dense:
            layer[copy] = tuple(t[:length] for t in layer[id])
        return copy

    def trim(self, id, length):
        self.cache.trim(id, length)
        for layer in self.dense:
            layer[id] = tuple(t[:length] for t in layer[id])

    def free(self, id):
        self.cache.free(id)
        for layer in self.dense:
            del layer[id]

    def append(self, ids, tokens, **options):
        step = self.cache.extend(ids, tokens)
        counts = [tokens] * len(ids) if isinstance(tokens, int) else tokens
        for number, layer in enumerate(self.dense):
            key, value = (torch.randn(sum(counts), KV_HEADS, d).to(self.input) for d in self.dims)
            self.cache.append(number, key, value, step, **options)
            for id, k, v in zip(ids, key.split(counts), value.split(counts)):
                layer[id] = torch.cat((layer[id][0], k)), torch.cat((layer[id][1], v))
        return step

    def check(self):
        for number, layer in enumerate(self.dense):
            for id, dense in layer.items():
                assert self.cache.length(id) == dense[0].shape[0]
                for actual, expected in zip(self.cache.gather(number, id), dense):
                    assert torch.equal(actual.transpose(0, 1), expected)

    def check_attention(self, ids, step, tokens, dtype=torch.float32):
        counts = [tokens] * len(ids) if isinstance(tokens, int) else tokens
        query = torch.randn(sum(counts), HEADS, DIM).to(dtype)
        for number, layer in enumerate(self.dense):
            out, lse = self.cache.attend(number, query, step, return_lse=True)
            assert out.shape == (sum(counts), HEADS, self.dims[1])
            first = 0
            for id, count in zip(ids, counts):
                rows = slice(first, first := first + count)
                key, value = (t.transpose(0, 1)[None] for t in layer[id])
                expected, expected_lse = exact_attention(
                    query[None, rows].transpose(1, 2), key, value, causal=True
                )
                assert_matches(out[rows].transpose(0, 1)[None], expected)
                assert_matches(lse[None, :, rows], expected_lse)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("page_size, v_head_dim", [(16, None), (64, 24)])
def test_prefill_and_decode(dtype, page_size, v_head_dim):
    mirror = Mirror(page_size=page_size, dtype=dtype, v_head_dim=v_head_dim)
    ids = [mirror.add() for _ in range(4)]
    step = mirror.append(ids, [19, 0, 64, 5])
    mirror.check()
    mirror.check_attention(ids, step, [19, 0, 64, 5], dtype)
    for _ in range(3):
        step = mirror.append(ids, 1)
        mirror.check_attention(ids, step, 1, dtype)
    step = mirror.append(ids[::-2], [4, 2])
    mirror.check_attention(ids[::-2], step, [4, 2], dtype)
    mirror.check()


def test_the_step():
    mirror = Mirror()
    a, b = mirror.add(), mirror.add()
    mirror.append([a], [20])
    step = mirror.append([b, a], [3, 2])
    assert step.positions.tolist() == [0, 1, 2, 20, 21]
    assert step.key_lengths.tolist() == [3, 22] and step.cu_seqlens.tolist() == [0, 3, 5]
    assert step.block_table.shape == (2, 2) and step.block_table[0, 1] == -1
    pages = [int(step.block_table[0, 0])] * 3 + [int(step.block_table[1, 1])] * 2
    assert step.slots.tolist() == [16 * p + row for p, row in zip(pages, [0, 1, 2, 4, 5])]
    assert step.ids == [b, a]
    for tensor in step[:5]:
        assert tensor.is_contiguous()
    assert (step.slots.dtype, step.positions.dtype) == (torch.int64, torch.int64)
    assert all(t.dtype == torch.int32 for t in (step.block_table, step.key_lengths, step.cu_seqlens))
    empty = mirror.cache.extend([], [])
    assert empty.slots.shape == (0,) and empty.block_table.shape[0] == 0 and empty.cu_seqlens.tolist() == [0]


def test_batches_with_a_dimension_of_their_own():
    mirror = Mirror()
    ids = [mirror.add() for _ in range(3)]
    step = mirror.cache.extend(ids, 7)
    query, key, value = (torch.randn(3, h, 7, DIM) for h in (HEADS, KV_HEADS, KV_HEADS))
    mirror.cache.append(1, key, value, step)
    out = mirror.cache.attend(1, query, step, window=(3, 0))
    assert_matches(out, exact_attention(query, key, value, causal=True, window=(3, 0))[0])


def test_forks_share_pages_until_they_write():
    mirror = Mirror(num_pages=12)
    a = mirror.add()
    mirror.append([a], [40])
    assert mirror.cache.used_pages == 3
    b, c = mirror.fork(a), mirror.fork(a, 32)
    d = mirror.fork(a, 5)
    assert mirror.cache.used_pages == 3
    step = mirror.append([a, b, c, d], [1, 2, 3, 20])
    # a or b got its own last page, c a new one, d its own first and a second.
    assert mirror.cache.used_pages == 7
    mirror.check()
    mirror.check_attention([a, b, c, d], step, [1, 2, 3, 20])
    mirror.free(a)
    mirror.check()
    for id in (b, c, d):
        mirror.free(id)
    assert mirror.cache.used_pages == 0 and mirror.cache.free_pages == 12


def test_trimmed_drafts():
    mirror = Mirror()
    a = mirror.add()
    mirror.append([a], [30])
    for accepted in (33, 31, 32):
        step = mirror.append([a], [5])
        mirror.check_attention([a], step, 5)
        mirror.trim(a, accepted)
        mirror.check()
    mirror.trim(a, 16)
    assert mirror.cache.used_pages == 1
    mirror.trim(a, 0)
    assert mirror.cache.used_pages == 0


def test_a_full_pool_changes_nothing():
    mirror = Mirror(num_pages=4)
    a, b = mirror.add(), mirror.add()
    mirror.append([a, b], [20, 16])
    with pytest.raises(tileformer.CacheFull) as caught:
        mirror.cache.extend([a, b], [12, 17])
    assert isinstance(caught.value, RuntimeError)
    assert "2" in str(caught.value) and "1" in str(caught.value) and "4" in str(caught.value)
    assert mirror.cache.used_pages == 3
    mirror.check()
    step = mirror.append([a, b], [12, 16])
    mirror.check_attention([a, b], step, [12, 16])
    assert mirror.cache.free_pages == 0


def test_stale_rows_are_not_read():
    mirror = Mirror(num_pages=6)
    for number in range(LAYERS):
        for pool in mirror.cache.layer(number)[:2]:
            pool.fill_(float("nan"))
    a, b = mirror.add(), mirror.add()
    step = mirror.append([a, b], [19, 40])
    mirror.check_attention([a, b], step, [19, 40])
    mirror.free(b)
    for pool in mirror.cache.layer(0)[:2]:
        pool[[p for p in range(6) if p not in step.block_table[0].tolist()]] = float("inf")
    c = mirror.add()
    step = mirror.append([a, c], [1, 3])
    mirror.check_attention([a, c], step, [1, 3])


@pytest.mark.parametrize("stored", QUANTISED, ids=str)
@pytest.mark.parametrize("given", [torch.float32, torch.bfloat16], ids=str)
def test_quantised(stored, given):
    cache = tileformer.PagedKVCache(1, KV_HEADS, DIM, num_pages=9, page_size=16, dtype=stored)
    a, b = cache.add(), cache.add()
    key, value = (torch.randn(50, KV_HEADS, DIM).to(given) for _ in range(2))
    step = cache.extend([a, b], [20, 30])
    cache.append(0, key, value, step)
    for n, id in enumerate((a, b)):
        rows = slice(20 * n, 20 + 30 * n)
        for actual, source in zip(cache.gather(0, id), (key, value)):
            codes, scale = quantise(source[rows], stored)
            exact = codes.float() * scale[..., None]
            # A code may differ by one where x * (q / max) falls on a boundary.
            apart = (actual.transpose(0, 1) - exact).abs()
            assert (apart > 1e-6).float().mean() < 0.01
            bound = {torch.int8: 1 / 127, torch.float8_e4m3fn: 1 / 8, torch.float8_e5m2: 1 / 4}[stored]
            largest = source[rows].float().abs().amax(-1, keepdim=True)
            assert ((actual.transpose(0, 1) - source[rows].float()).abs() <= bound * largest).all()
    query = torch.randn(50, HEADS, DIM).to(given)
    out = cache.attend(0, query, step)
    for n, id in enumerate((a, b)):
        rows = slice(20 * n, 20 + 30 * n)
        k, v = (t[None] for t in cache.gather(0, id))
        assert_matches(
            out[rows].transpose(0, 1)[None],
            exact_attention(query[None, rows].transpose(1, 2), k, v, causal=True)[0],
        )


def test_a_row_of_zeros_and_a_row_with_nan():
    cache = tileformer.PagedKVCache(1, 1, DIM, num_pages=2, page_size=16, dtype=torch.int8)
    a, b = cache.add(), cache.add()
    step = cache.extend([a, b], 2)
    key = torch.zeros(4, 1, DIM)
    key[3, 0, 5] = float("nan")
    cache.append(0, key, torch.ones(4, 1, DIM), step)
    assert (cache.gather(0, a)[0] == 0).all()
    out = cache.attend(0, torch.ones(4, 1, DIM), step)
    assert_matches(out[:3], torch.ones(3, 1, DIM, dtype=torch.float64))
    assert out[3].isnan().all()


def rotate(x, cos, sin, interleaved):
    """x [tokens, heads, dim], cos [tokens, rotary_dim / 2]; float64."""
    x, half = x.double(), cos.shape[1]
    cos, sin = cos.double()[:, None], sin.double()[:, None]
    rotated = x.clone()
    first, second = (
        (slice(0, 2 * half, 2), slice(1, 2 * half, 2))
        if interleaved
        else (slice(half), slice(half, 2 * half))
    )
    rotated[..., first] = x[..., first] * cos - x[..., second] * sin
    rotated[..., second] = x[..., second] * cos + x[..., first] * sin
    return rotated


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("rotary_dim", [DIM, 6])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_rotary(interleaved, rotary_dim, dtype):
    cache = tileformer.PagedKVCache(1, KV_HEADS, DIM, num_pages=6, page_size=16, dtype=dtype)
    angles = torch.outer(torch.arange(40.0), 100.0 ** -torch.arange(0, 1, 2 / rotary_dim))
    rotary = tileformer.Rotary(angles.cos(), angles.sin(), interleaved)
    a, b = cache.add(), cache.add()
    written = {a: [], b: []}
    for counts in ([20, 3], [1, 2]):
        step = cache.extend([a, b], counts)
        query, key = (
            torch.randn(sum(counts), HEADS, DIM).to(dtype),
            torch.randn(sum(counts), KV_HEADS, DIM).to(dtype),
        )
        cache.append(0, key, torch.zeros_like(key), step, rotary)
        own = rotary.cos[step.positions], rotary.sin[step.positions]
        for id, rows in zip((a, b), rotate(key, *own, interleaved).split(counts)):
            written[id].append(rows)
        assert_matches(rotary.rotate(query, step), rotate(query, *own, interleaved))
    for id, rows in written.items():
        assert_matches(cache.gather(0, id)[0].transpose(0, 1), torch.cat(rows))
    out = cache.attend(0, query, step, rotary=rotary)
    assert torch.equal(out, cache.attend(0, rotary.rotate(query, step), step))
    moved = rotary._replace(positions=step.positions + 7)
    expected = rotate(query, rotary.cos[moved.positions], rotary.sin[moved.positions], interleaved)
    assert_matches(moved.rotate(query, step), expected)
    assert_matches(
        tileformer.apply_rotary(query, rotary.cos, rotary.sin, moved.positions, interleaved), expected
    )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.int8], ids=str)
@pytest.mark.parametrize("where", ["file", "memory", "own_buffer"])
def test_swapping(tmp_path, dtype, where):
    mirror = Mirror(num_pages=8, dtype=dtype)
    a, b = mirror.add(), mirror.add()
    mirror.append([a, b], [37, 5])
    before = [mirror.cache.gather(layer, a) for layer in range(LAYERS)]
    mirror.cache.fork(a, 20)
    if where == "file":
        mirror.cache.swap_out(a, source := tmp_path / "sequence")
    elif where == "memory":
        source = mirror.cache.swap_out(a)
    else:
        source = bytearray(mirror.cache.swap_bytes(a))
        mirror.cache.swap_out(a, memoryview(source))
    assert mirror.cache.used_pages == 3
    with pytest.raises(ValueError, match=str(a)):
        mirror.cache.length(a)
    other = Mirror(num_pages=3, page_size=32, dtype=dtype).cache
    for cache in (mirror.cache, other):
        back = cache.swap_in(source)
        for layer, expected in enumerate(before):
            assert all(torch.equal(x, y) for x, y in zip(cache.gather(layer, back), expected))
    with pytest.raises(tileformer.CacheFull):
        other.swap_in(source)
    assert other.used_pages == 2


def test_swapping_refuses_what_is_not_a_sequence(tmp_path):
    mirror = Mirror()
    a = mirror.add()
    mirror.append([a], [20])
    with pytest.raises(ValueError):
        mirror.cache.swap_out(a, bytearray(7))
    with pytest.raises(ValueError, match="missing"):
        mirror.cache.swap_out(a, tmp_path / "missing" / "sequence")
    mirror.check()
    with pytest.raises(ValueError, match="nowhere"):
        mirror.cache.swap_in(tmp_path / "nowhere")
    source = mirror.cache.swap_out(a)
    for wrong in (b"", b"something else", bytes(source[:-1])):
        with pytest.raises(ValueError):
            mirror.cache.swap_in(wrong)
    assert mirror.cache.used_pages == 0


def test_random_lives():
    generator = torch.Generator().manual_seed(3)

    def draw(n):
        return int(torch.randint(n, (), generator=generator))

    mirror = Mirror(num_pages=24)
    for _ in range(60):
        ids = list(mirror.dense[0])
        match draw(6) if ids else 0:
            case 0:
                mirror.add()
            case 1:
                mirror.fork(id := ids[draw(len(ids))], draw(mirror.cache.length(id) + 1))
            case 2:
                mirror.trim(id := ids[draw(len(ids))], draw(mirror.cache.length(id) + 1))
            case 3 if len(ids) > 3:
                mirror.free(ids[draw(len(ids))])
            case _:
                chosen = [id for id in ids if draw(2)]
                try:
                    mirror.append(chosen, [draw(20) for _ in chosen])
                except tileformer.CacheFull:
                    mirror.free(ids[0])
        mirror.check()
    for id in list(mirror.dense[0]):
        mirror.free(id)
    assert mirror.cache.used_pages == 0


def test_threads():
    cache = tileformer.PagedKVCache(1, 1, DIM, num_pages=64, page_size=16, dtype=torch.float32)
    shared = cache.add()
    cache.append(0, *(torch.full((20, 1, DIM), -1.0),) * 2, cache.extend([shared], 20))
    wrong = []

    def work(mark: float) -> None:
        try:
            for _ in range(20):
                own = cache.fork(shared)
                rows = torch.full((9, 1, DIM), mark)
                step = cache.extend([own], 9)
                cache.append(0, rows, rows, step)
                cache.attend(0, rows, step)
                key, _ = cache.gather(0, own)
                if not ((key[0, :20] == -1).all() and (key[0, 20:] == mark).all()):
                    wrong.append(key)
                cache.free(own)
        except Exception as error:
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(float(i),)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong and cache.used_pages == 2


def test_tensors_keep_the_memory_alive():
    cache = tileformer.PagedKVCache(1, 1, DIM, num_pages=4, page_size=16, dtype=torch.float32)
    step = cache.extend([cache.add()], 3)
    cache.append(0, *(torch.ones(3, 1, DIM),) * 2, step)
    pool, slots = cache.layer(0).key, step.slots
    del cache, step
    gc.collect()
    assert pool[int(slots[0]) // 16, 0, 0].sum() == DIM


def test_sizes():
    cache = tileformer.PagedKVCache(
        3, 2, 8, v_head_dim=4, num_pages=5, page_size=32, dtype=torch.int8, value_dtype=torch.float16
    )
    pools = cache.layer(2)
    assert pools.key.shape == (5, 2, 32, 8) and pools.key.dtype == torch.int8
    assert pools.value.shape == (5, 2, 32, 4) and pools.value.dtype == torch.float16
    assert pools.key_scale.shape == (5, 2, 32) and pools.value_scale is None
    assert cache.nbytes >= 3 * 5 * 2 * 32 * (8 + 4 + 8)
    assert "0 of 5 pages of 32 tokens" in repr(cache)
    none = tileformer.PagedKVCache(1, 1, 8, num_pages=0)
    with pytest.raises(tileformer.CacheFull):
        none.extend([none.add()], 1)


ERRORS = {
    "layers": (dict(num_layers=0), "layers.*0"),
    "kv_heads": (dict(kv_heads=-1), "kv_heads.*-1"),
    "dim": (dict(head_dim=577), "dim.*577.*576"),
    "page_size": (dict(page_size=24), "page_size.*24.*16"),
    "num_pages": (dict(num_pages=-1), "pages.*-1"),
    "dtype": (dict(dtype=torch.float64), "dtype is torch.float64; allowed are float32"),
    "value_dtype": (dict(value_dtype=torch.int32), "value_dtype is torch.int32; allowed"),
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors_of_construction(name):
    options, message = ERRORS[name]
    with pytest.raises(ValueError, match=message):
        tileformer.PagedKVCache(**{**dict(num_layers=1, kv_heads=1, head_dim=8, num_pages=1), **options})


def test_errors_of_use():
    mirror = Mirror()
    cache, a = mirror.cache, mirror.add()
    step = mirror.append([a], [3])
    key = torch.zeros(3, KV_HEADS, DIM)
    with pytest.raises(ValueError, match="layer is 2; allowed are 0 to 1"):
        cache.append(2, key, key, step)
    with pytest.raises(ValueError, match=r"slots.*\[3\].*\[2\]"):
        cache.append(0, key[:2], key[:2], step)
    with pytest.raises(ValueError, match="value"):
        cache.append(0, key, key[:, :1], step)
    with pytest.raises(ValueError, match="key"):
        cache.append(0, key.int(), key, step)
    with pytest.raises(RuntimeError, match=r"key requires grad.*no_grad"):
        cache.append(0, key.clone().requires_grad_(), key, step)
    with pytest.raises(ValueError, match="positions"):
        cache.append(0, key, key, step, tileformer.Rotary(torch.ones(2, 4), torch.ones(2, 4)))
    for call in (cache.length, cache.free, cache.fork, cache.swap_out, lambda id: cache.extend([id], 1)):
        with pytest.raises(ValueError, match="99"):
            call(99)
    with pytest.raises(ValueError, match=r"length.*4.*3"):
        cache.trim(a, 4)
    with pytest.raises(ValueError, match=r"length.*4.*3"):
        cache.fork(a, 4)
    with pytest.raises(ValueError, match=r"tokens.*-1"):
        cache.extend([a], [-1])
    with pytest.raises(ValueError, match="tokens"):
        cache.extend([a], [1, 2])
    with pytest.raises(ValueError, match=r"ids.*twice"):
        cache.extend([a, a], 1)
    with pytest.raises(TypeError, match="ids"):
        cache.extend(5, [1])
    with pytest.raises(TypeError):
        cache.extend(["a"], 1)
    mirror.check()


@pytest.mark.slow
def test_opcheck():
    cache = tileformer.PagedKVCache(1, KV_HEADS, DIM, num_pages=4, page_size=16, dtype=torch.int8)
    step, pages = cache.extend([cache.add(), cache.add()], [5, 3]), cache.layer(0)
    key, query = torch.randn(8, KV_HEADS, DIM), torch.randn(8, HEADS, DIM)
    cos, sin = torch.ones(8, 4), torch.zeros(8, 4)
    check = torch.library.opcheck
    pools = tuple(p.clone() for p in pages)
    check(
        OPS.kv_append_.default, (key, key, *pools[:2], step.slots, *pools[2:], cos, sin, step.positions, True)
    )
    dense = torch.zeros(4, KV_HEADS, 16, DIM)
    check(OPS.kv_append_.default, (key, None, dense, None, step.slots))
    check(OPS.rotary.default, (query, cos, sin, step.positions))
    check(OPS.kv_slots.default, (step.block_table, torch.tensor([1, 2], dtype=torch.int32), 4, 4, 16))
    check(OPS.copy_pages_.default, ([dense, dense.clone()], torch.tensor([[0, 1, 16], [2, 3, 5]])))
    paged = (
        query,
        *pages[:2],
        step.block_table,
        step.key_lengths,
        *pages[2:],
        step.cu_seqlens,
    )
    check(OPS.attention_paged.default, paged)
    options = (None, 0.3, 2, 5, 0, 2.0, torch.rand(HEADS), torch.rand(HEADS), None, None, True)
    check(OPS.attention_paged.default, (*paged, *options))
    check(
        OPS.attention_paged.default,
        (query.view(2, 4, HEADS, DIM).transpose(1, 2), *paged[1:7], None, *options),
    )


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compiled_layer(backend):
    def caches():
        torch.manual_seed(0)
        mirror = Mirror(dtype=torch.bfloat16)
        ids = [mirror.add() for _ in range(3)]
        mirror.append(ids, [4, 17, 30])
        return mirror.cache, mirror.cache.extend(ids, 1)

    def layers(cache, step, x):
        for layer in range(LAYERS):
            cache.append(layer, x[:, :KV_HEADS], x[:, :KV_HEADS] * 2, step)
            x = x + cache.attend(layer, x, step).sin()
        return x

    x = torch.randn(3, HEADS, DIM).bfloat16()
    with torch.no_grad():
        expected = layers(*caches(), x)
        actual = torch.compile(layers, fullgraph=True, backend=backend)(*caches(), x)
    torch.testing.assert_close(actual, expected, rtol=2e-2, atol=2e-2)


def test_a_step_of_tokens_that_are_gone_is_refused():
    cache = tileformer.PagedKVCache(1, 2, 32, num_pages=4, dtype=torch.float32)
    one, other = cache.add(), cache.add()
    step = cache.extend([one], 20)
    new = torch.randn(20, 2, 32)
    cache.append(0, new, new, step)
    cache.free(other)
    cache.attend(0, new, step)  # another sequence's end does not matter
    cache.trim(one, 5)
    with pytest.raises(ValueError, match="step is of 20 tokens"):
        cache.append(0, new, new, step)
    cache.free(one)
    with pytest.raises(ValueError):
        cache.attend(0, new, step)


@pytest.mark.parametrize("how", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_copy_is_refused_by_what_to_use_instead(how):
    with pytest.raises(TypeError, match=r"fork\(\).*swap_out\(\)"):
        how(Mirror().cache)
