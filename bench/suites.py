"""The rows of every suite, with the figures they have to reach.

A suite's rows take a few seconds each; `full` adds the long ones.
"""

from __future__ import annotations

from collections.abc import Callable

from bench.bars import Ahead, CostPerWork, PercentOfPeak, PointsBelow, SpeedUp
from bench.case import AttentionCase
from bench.row import Row

AHEAD = (Ahead("torch-flash", ratio_dot=2.0), Ahead("zentorch"), Ahead("vllm"))
ALL_PEERS = ("torch-flash", "torch-math", "zentorch", "vllm")


def main(full: bool) -> list[Row]:
    """Long and short sequences, full and causal, in every dtype; 16 heads: each is cold when it is read."""
    rows = []
    for dtype in ("bf16", "fp16", "fp32"):
        long = AttentionCase(dim=128, seq=4096, dtype=dtype)
        wide = AttentionCase(dim=64, seq=4096, dtype=dtype)
        short = AttentionCase(dim=64, seq=1024, dtype=dtype)
        cold = AttentionCase(dim=64, seq=512, heads=16, dtype=dtype, causal=True)
        rows += [
            Row(long, peers=ALL_PEERS, bars=(PercentOfPeak(dot=91, amx=55, fma=92, avx2=88), *AHEAD)),
            Row(long.with_(causal=True), bars=(PercentOfPeak(dot=89), *AHEAD)),
            Row(wide, bars=(PercentOfPeak(dot=89), *AHEAD)),
            Row(short, bars=AHEAD),
            Row(short.with_(causal=True), bars=(PercentOfPeak(dot=85, fma=88, avx2=83), *AHEAD)),
            Row(cold, peers=ALL_PEERS, bars=(PercentOfPeak(dot=80), *AHEAD)),
            Row(cold.with_(seq=128), bars=(PercentOfPeak(dot=62), *AHEAD)),
        ]
        if full:
            rows += [
                Row(wide.with_(causal=True), bars=AHEAD),
                Row(long.with_(seq=16384), bars=AHEAD),
                Row(long.with_(seq=16384, causal=True), bars=AHEAD),
                Row(cold.with_(seq=128, causal=False), bars=AHEAD),
            ]
    return rows


def head_dim(full: bool) -> list[Row]:
    """Head dimensions of real models, and with `full` such as no unit likes."""
    bar = PercentOfPeak(dot=85)
    dims = [64, 80, 96, 128, 192, 256] + ([40, 72, 112, 160, 320, 576] if full else [])
    return [Row(AttentionCase(dim=dim, seq=2048), bars=(bar, *AHEAD)) for dim in dims]


def gqa(full: bool) -> list[Row]:
    """Grouped heads beside the same number of full heads."""
    rows = []
    for heads, kv_heads, dim in ((9, 3, 64), (32, 8, 128), (28, 4, 128)):
        case = AttentionCase(dim=dim, seq=4096, heads=heads, kv_heads=kv_heads, causal=True)
        rows.append(Row(case, {"mha": case.with_(kv_heads=heads)}, bars=(PointsBelow("mha", 3), *AHEAD)))
    return rows


def window(full: bool) -> list[Row]:
    """Sliding windows of a long sequence, against their share of full causal attention."""
    rows = []
    for left in [512] + ([128, 1024, 4096] if full else []):
        case = AttentionCase(dim=64, seq=32768, causal=True, window=(left, 0))
        variants = {"causal": case.with_(window=(-1, -1))}
        rows.append(Row(case, variants, bars=(CostPerWork("causal", 1.25), *AHEAD)))
    return rows


def mask(full: bool) -> list[Row]:
    """Masks against none. A padding mask hides a quarter of the keys, which a kernel may skip."""
    plain = AttentionCase(dim=128, seq=4096)
    rows = []
    for kind in ("bool", "float", "padding"):
        bars = (CostPerWork("plain", 1.10), *AHEAD)
        rows.append(Row(plain.with_(mask=kind), {"plain": plain}, bars=bars))
    if full:
        masked = plain.with_(causal=True, mask="bool")
        rows.append(Row(masked, {"plain": masked.with_(mask="")}, bars=(CostPerWork("plain", 1.10), *AHEAD)))
    return rows


def features(full: bool) -> list[Row]:
    """What each option costs beyond its share of the work."""
    dtypes = ("bf16", "fp16", "fp32") if full else ("bf16",)
    rows = []
    for dtype in dtypes:
        plain = AttentionCase(dim=128, seq=4096, dtype=dtype, causal=True)
        options = ({"window": (1024, 0)}, {"softcap": 30.0}, {"alibi": True}, {"sinks": True})
        for option in options:
            factor = 1.25 if "softcap" in option else 1.10
            bars = (CostPerWork("plain", factor), *AHEAD)
            rows.append(Row(plain.with_(**option), {"plain": plain}, bars=bars))
    return rows


def growth(full: bool) -> list[Row]:
    """Scores that grow along the keys: the worst case of a running maximum."""
    bars = (PercentOfPeak(dot=80, fma=80, avx2=80), *AHEAD)
    return [
        Row(AttentionCase(dim=128, seq=4096, dtype=dtype, key_growth=0.01), bars=bars)
        for dtype in ("bf16", "fp16", "fp32")
    ]


def isa(full: bool) -> list[Row]:
    """Every instruction set of this machine, forced."""
    rows = []
    for name in ("amx", "avx512_bf16", "avx512", "avx2", "neon", "portable"):
        # The portable kernel is for correctness; its rows are kept short.
        seq = 512 if name == "portable" else 4096
        for dtype in ("bf16", "fp16", "fp32"):
            case = AttentionCase(dim=128, seq=seq, dtype=dtype)
            bars = (PercentOfPeak(dot=91, amx=55, fma=92, avx2=88),)
            rows.append(Row(case, peers=("torch-flash",), bars=bars, isa=name))
            short = AttentionCase(dim=64, seq=seq // 4, dtype=dtype, causal=True)
            bars = (PercentOfPeak(dot=85, fma=88, avx2=83),)
            rows.append(Row(short, peers=("torch-flash",), bars=bars, isa=name))
    return rows


def threads(full: bool) -> list[Row]:
    """Two threads against one, on many heads and on one."""
    rows = []
    for heads, seq, causal in ((8, 1024, True), (8, 1024, False), (1, 4096, True), (1, 1024, True)):
        for dtype in ("bf16", "fp32") if full else ("bf16",):
            case = AttentionCase(dim=128, seq=seq, heads=heads, dtype=dtype, causal=causal, threads=2)
            bars = (SpeedUp("1 thread", 1.9), *AHEAD)
            rows.append(Row(case, {"1 thread": case.with_(threads=1)}, bars=bars))
    return rows


def overhead(full: bool) -> list[Row]:
    """A problem so small that the call itself is what is measured."""
    rows = []
    for threads_ in (1, 2):
        for dtype in ("bf16", "fp32"):
            case = AttentionCase(dim=64, seq=16, heads=8, dtype=dtype, threads=threads_)
            rows.append(Row(case, bars=AHEAD))
    return rows


def backward(full: bool) -> list[Row]:
    """Gradients from one fused pass, beside torch's flash backward and its unfused one (dQ, dK, dV apart)."""
    long = AttentionCase(dim=128, seq=4096, backward=True)
    wide = AttentionCase(dim=64, seq=4096, backward=True)
    cold = AttentionCase(dim=64, seq=1024, heads=16, causal=True, backward=True)
    ahead = (Ahead("torch-flash", ratio_dot=1.6, ratio_amx=3.0),)
    rows = []
    for dtype in ("bf16", "fp16", "fp32"):
        fma = {"fp16": 85, "fp32": 88}.get(dtype)
        for case, dot in ((long, 88), (long.with_(causal=True), 85), (wide, 88), (cold, 80)):
            bars = (PercentOfPeak(dot=dot, amx=45, fma=fma, avx2=80), *ahead)
            peers = ("torch-flash", "torch-math") if case == long else ("torch-flash",)
            rows.append(Row(case.with_(dtype=dtype), peers=peers, bars=bars))
        if full:
            for case in (
                cold.with_(seq=128),
                cold.with_(seq=512),
                long.with_(heads=8, kv_heads=2, causal=True),
            ):
                rows.append(Row(case.with_(dtype=dtype), peers=("torch-flash",), bars=ahead))
    return rows


def backward_features(full: bool) -> list[Row]:
    """What each option costs in the backward beyond its share of the work."""
    plain = AttentionCase(dim=128, seq=2048, causal=True, backward=True)
    rows = []
    for option in (
        {"window": (512, 0)},
        {"softcap": 30.0},
        {"alibi": True},
        {"sinks": True},
        {"mask": "bool"},
    ):
        factor = 1.25 if "softcap" in option else 1.10
        bars = (CostPerWork("plain", factor),)
        rows.append(Row(plain.with_(**option), {"plain": plain}, peers=(), bars=bars))
    return rows


def backward_threads(full: bool) -> list[Row]:
    """Two threads against one in the backward, on many heads and on one."""
    rows = []
    for heads, seq, causal in ((8, 1024, True), (1, 4096, False), (1, 4096, True), (1, 1024, True)):
        case = AttentionCase(dim=128, seq=seq, heads=heads, causal=causal, backward=True, threads=2)
        bars = (SpeedUp("1 thread", 1.9), Ahead("torch-flash", ratio_dot=1.6))
        rows.append(Row(case, {"1 thread": case.with_(threads=1)}, peers=("torch-flash",), bars=bars))
    return rows


FORWARD_SUITES: dict[str, Callable[[bool], list[Row]]] = {
    "main": main,
    "head_dim": head_dim,
    "gqa": gqa,
    "window": window,
    "mask": mask,
    "features": features,
    "growth": growth,
    "isa": isa,
    "threads": threads,
    "overhead": overhead,
}
BACKWARD_SUITES: dict[str, Callable[[bool], list[Row]]] = {
    "backward": backward,
    "backward_features": backward_features,
    "backward_threads": backward_threads,
}
SUITES = {**FORWARD_SUITES, **BACKWARD_SUITES}
