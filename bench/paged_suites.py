"""The rows over a KV cache: decode, append, prefill; with the figures they have to reach.

Caches are beyond L3 where it is not said otherwise: 256 MiB in bf16, 128 MiB in a byte per element. `full`
adds every group, head dimension and dtype.
"""

from __future__ import annotations

from collections.abc import Callable

from bench.bars import Ahead, SpeedUp
from bench.paged_bars import (
    BandwidthPointsBelow,
    BothCores,
    LessCache,
    LessTime,
    PeakBeside,
    PercentOfBandwidth,
    PercentOfBound,
)
from bench.paged_case import AppendCase, PagedCase
from bench.row import Row

PEERS = ("torch-flash", "zentorch", "vllm")
AHEAD = (Ahead("torch-flash"), Ahead("zentorch"), Ahead("vllm"))
# By these factors in bf16, on rows beyond L3.
FAR_AHEAD = (
    Ahead("torch-flash", 20, ratio_dot=20, ratio_amx=20),
    Ahead("zentorch"),
    Ahead("vllm", 2.5, ratio_dot=2.5, ratio_amx=2.5),
)
# (head_dim, group) -> percent of the read bandwidth, bf16; the rest has no figure of its own.
READ_BARS = {(128, 1): 77, (128, 3): 82, (128, 4): 80, (64, 3): 78}
WIDE_GROUP = 8  # from here on products bound bf16 dot products too
TWO_THREADS = 85  # percent of the bandwidth of two threads, up to a group of WIDE_GROUP
BYTE_DTYPES = ("int8", "e4m3", "e5m2")
BYTE_GAINS = {1: 1.6, 4: 1.3}  # tokens/s over bf16 by group; never slower in any
KV_HEADS = 8


def decode_case(dim: int, group: int, **options) -> PagedCase:
    """256 MiB of bf16 keys and values: eight sequences of 8192 tokens, of 16384 with half of the head_dim."""
    lengths = (8192 * 128 // dim,) * 8
    return PagedCase(dim=dim, heads=KV_HEADS * group, kv_heads=KV_HEADS, lengths=lengths, **options)


def _bandwidth_bars(case: PagedCase) -> tuple:
    group = case.heads // case.kv_heads
    if case.cache_dtype != "bf16":
        return ()
    if group >= WIDE_GROUP:
        return (PercentOfBound(read=85, multiply=85),)
    read = READ_BARS.get((case.dim, group))
    return (PercentOfBound(read=read),) if read else ()


def _decode_row(dim: int, group: int, dtype: str) -> Row:
    case = decode_case(dim, group, dtype=dtype)
    return Row(case, peers=PEERS, bars=(*_bandwidth_bars(case), *(FAR_AHEAD if dtype == "bf16" else AHEAD)))


def _byte_row(dim: int, group: int, dtype: str) -> Row:
    plain = decode_case(dim, group)
    bars = (SpeedUp("bf16", BYTE_GAINS.get(group, 1.0)),)
    return Row(plain.with_(cache_dtype=dtype), {"bf16": plain}, peers=("vllm",), bars=bars)


def _layout_row(group: int) -> Row:
    pages = decode_case(128, group)
    bars = (BandwidthPointsBelow("pages", 8),)
    return Row(pages.with_(layout="flash"), {"pages": pages}, peers=(), bars=bars)


def _thread_row(group: int) -> Row:
    case = decode_case(128, group, threads=2)
    return Row(
        case,
        {"1 thread": case.with_(threads=1)},
        peers=PEERS,
        bars=(PercentOfBound(read=TWO_THREADS), *FAR_AHEAD),
    )


def _long_row() -> Row:
    """One sequence with one kv head: keys have to be split for two threads to share the work."""
    case = PagedCase(dim=128, heads=4, kv_heads=1, lengths=(32768,), threads=2)
    bars = (BothCores("1 thread", 1.8, enough=TWO_THREADS), *AHEAD)
    return Row(case, {"1 thread": case.with_(threads=1)}, peers=PEERS, bars=bars)


def _grouped_row() -> Row:
    """32 query heads on 8 kv heads beside the same cache with every kv head repeated four times."""
    case = PagedCase(dim=128, heads=32, kv_heads=8, lengths=(4096,) * 8)
    bars = (LessCache("expanded", 4), LessTime("expanded", 20))
    return Row(case, {"expanded": case.with_(kv_heads=32)}, peers=(), bars=bars)


def _short_rows() -> list[Row]:
    """SmolLM2's heads, caches of 0.8 to 48 MiB."""
    case = PagedCase(dim=64, heads=9, kv_heads=3, lengths=(128,))
    return [
        Row(case.with_(lengths=(keys,) * batch, queries=1), peers=PEERS, bars=AHEAD)
        for keys in (128, 2048)
        for batch in (8, 32)
    ]


def decode(full: bool) -> list[Row]:
    """One query a sequence: GB/s of keys and values, beside a plain stream through as many bytes."""
    rows = [_decode_row(128, group, "bf16") for group in (1, 3, 4, 8, 16)]
    rows += [_decode_row(64, group, "bf16") for group in ((1, 3, 4, 8, 16) if full else (3,))]
    uneven = decode_case(128, 4).with_(lengths=(300, 1000, 3000, 6000, 9000, 12000, 15000, 20000))
    rows += [_layout_row(4), _thread_row(4), _thread_row(8), _long_row(), _grouped_row()]
    rows += [Row(uneven, peers=PEERS, bars=(PercentOfBound(read=READ_BARS[128, 4]), *FAR_AHEAD))]
    rows += _short_rows()
    rows += [_byte_row(128, group, dtype) for dtype, group in (("int8", 1), ("int8", 4), ("e4m3", 4))]
    if not full:
        return [*rows, _decode_row(128, 4, "fp16"), _decode_row(128, 4, "fp32")]
    shapes = [(dim, group) for dim in (128, 64) for group in (1, 3, 4, 8, 16)]
    rows += [_decode_row(*shape, dtype) for dtype in ("fp16", "fp32") for shape in shapes]
    known = {row.case for row in rows}
    bytes_ = [_byte_row(*shape, dtype) for dtype in BYTE_DTYPES for shape in shapes]
    rows += [row for row in bytes_ if row.case not in known]
    return rows + [_layout_row(group) for group in (1, 3, 8)] + [_thread_row(group) for group in (1, 3)]


def append(full: bool) -> list[Row]:
    """New keys and values into scattered pages, beside a plain stream of writes of as many bytes."""
    large = AppendCase(dim=128, kv_heads=8, tokens=4096, batch=8)
    bars = (PercentOfBandwidth(60), Ahead("torch-flash"), Ahead("vllm"))
    peers = ("torch-flash", "vllm")
    rows = [Row(large, peers=peers, bars=bars)]
    rows += [Row(large.with_(cache_dtype=dtype), peers=(), bars=bars) for dtype in ("int8", "e4m3")]
    step = large.with_(tokens=1, batch=32)  # what decode writes: in caches, so no figure
    rows += [Row(step, peers=peers, bars=bars[1:])]
    if full:
        rows += [
            Row(large.with_(dtype=dtype, cache_dtype=""), peers=peers, bars=bars)
            for dtype in ("fp16", "fp32")
        ]
        rows += [Row(large.with_(cache_dtype="e5m2"), peers=(), bars=bars)]
        rows += [
            Row(large.with_(dim=64), peers=peers, bars=bars),
            Row(large.with_(threads=2), peers=peers, bars=bars),
        ]
    return rows


def _prefill_row(case: PagedCase, within: float) -> Row:
    variants = {"contiguous": case.with_(layout="contiguous")}
    return Row(case, variants, peers=PEERS, bars=(PeakBeside("contiguous", within), Ahead("vllm")))


def prefill(full: bool) -> list[Row]:
    """Many queries a sequence, over pages and over contiguous keys: prompts, chunks, chunks beside decode."""
    case = PagedCase(dim=128, heads=8, kv_heads=2, lengths=(4096,), queries=4096)
    chunk = case.with_(lengths=(4608,), queries=512)
    mixed = case.with_(lengths=(4096,) * 8 + (4608,), queries=(1,) * 8 + (512,))
    small = case.with_(dim=64, heads=9, kv_heads=3, lengths=(2048,) * 2, queries=2048)
    rows = [_prefill_row(case, 7), _prefill_row(small, 7), _prefill_row(chunk, 10)]
    rows += [Row(mixed, peers=PEERS, bars=(Ahead("vllm"),))]
    if full:
        for dtype in ("fp16", "fp32"):
            rows += [_prefill_row(case.with_(dtype=dtype), 7), _prefill_row(chunk.with_(dtype=dtype), 10)]
        rows += [_prefill_row(chunk.with_(threads=2), 10), _prefill_row(case.with_(threads=2), 7)]
        rows += [Row(chunk.with_(cache_dtype=dtype), {"bf16": chunk}, peers=()) for dtype in BYTE_DTYPES]
    return rows


SUITES: dict[str, Callable[[bool], list[Row]]] = {"decode": decode, "append": append, "prefill": prefill}
