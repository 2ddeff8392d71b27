"""The rows of mixture of experts, with the figures they have to reach.

FEW_LARGE has the experts of a Mixtral, MANY those of a Qwen3-MoE, SMALL such of a finer kind. `full` adds
shapes, dtypes and threads.
"""

from __future__ import annotations

from collections.abc import Callable

from bench.bars import Ahead, PercentOfPeak, SpeedUp
from bench.experts_bars import CostPerToken, ShareOfLayer
from bench.experts_case import ExpertsCase, RouteCase
from bench.paged_bars import BothCores, PercentOfBound
from bench.row import Row

FEW_LARGE = ExpertsCase(tokens=2048, hidden=1024, inter=3584, experts=8, top_k=2)
MANY = ExpertsCase(tokens=2048, hidden=2048, inter=704, experts=128, top_k=8)
SMALL = MANY.with_(inter=176)
SHAPES = (FEW_LARGE, MANY, SMALL)

PEERS = ("torch-grouped", "torch-loop", "vllm", "sglang", "zentorch")
# Of 2048 tokens with 16 bits: where torch has no such products a call takes it some 10 s, looped or grouped.
SLOW_PEERS = ("torch-grouped", "vllm", "sglang", "zentorch")
GROUPED = ("torch-grouped",)
FMA = 88  # percent of the peak at 2048 tokens, of units without products of 16-bit numbers
READ = 92  # percent of the bandwidth up to 16 tokens
# (experts, tokens) -> percent of the peak of bf16 dot products.
PEAK_BARS = {(8, 2048): 91, (8, 256): 87, (128, 2048): 85, (128, 256): 72}
AHEAD = {8: 1.0, 128: 1.3}  # of every peer, by experts
MORE_THREADS = 1.8  # times one thread
GAINS = {"int8": 1.8, "int4": 3.0}  # of codes over bf16, up to 4 tokens


def _peers(case: ExpertsCase) -> tuple[str, ...]:
    return SLOW_PEERS if case.tokens >= 2048 and case.dtype != "fp32" else PEERS


def _ahead(case: ExpertsCase) -> tuple:
    factor = AHEAD[case.experts]
    return tuple(Ahead(peer, factor, ratio_dot=factor, ratio_amx=factor) for peer in _peers(case))


def _peak(case: ExpertsCase) -> tuple:
    fma = FMA if case.tokens >= 2048 else None
    dot = PEAK_BARS.get((case.experts, case.tokens))
    return (PercentOfPeak(dot=dot, fma=fma, avx2=fma),) if fma or dot else ()


def _row(case: ExpertsCase) -> Row:
    """Judged by the peak, or up to 16 tokens by what bounds it."""
    bound = (PercentOfBound(read=READ),) if case.tokens <= 16 else _peak(case)
    return Row(case, peers=_peers(case), bars=(*bound, *_ahead(case)))


def _two_threads(case: ExpertsCase) -> Row:
    more = case.with_(threads=2)
    bars = (BothCores("1 thread", MORE_THREADS, enough=READ), *_ahead(case))
    return Row(more, {"1 thread": case}, peers=_peers(case), bars=bars)


def many_tokens(full: bool) -> list[Row]:
    """Experts of many tokens, forward: percent of the peak."""
    rows = [_row(shape.with_(tokens=tokens)) for shape in SHAPES for tokens in (256, 2048)]
    rows += [_row(FEW_LARGE.with_(dtype=dtype)) for dtype in ("fp32", "fp16")]
    rows += [_two_threads(FEW_LARGE)]
    if full:
        rows += [_row(FEW_LARGE.with_(tokens=64))]
        rows += [_row(SMALL.with_(dtype=dtype)) for dtype in ("fp32", "fp16")]
        rows += [_row(FEW_LARGE.with_(dtype=dtype, tokens=256)) for dtype in ("fp32", "fp16")]
        rows += [_two_threads(shape) for shape in (MANY, SMALL, FEW_LARGE.with_(tokens=256))]
    return rows


def few_tokens(full: bool) -> list[Row]:
    """Experts of few tokens, forward: GB/s of the weights of experts that have one, cold, each read once."""
    rows = [_row(shape.with_(tokens=tokens)) for shape in SHAPES for tokens in (1, 4, 16)]
    rows += [_two_threads(FEW_LARGE.with_(tokens=1))]
    if full:
        rows += [
            _row(FEW_LARGE.with_(tokens=tokens, dtype=dtype))
            for dtype in ("fp32", "fp16")
            for tokens in (1, 4, 16)
        ]
        rows += [_two_threads(shape.with_(tokens=tokens)) for shape in (MANY, SMALL) for tokens in (1, 16)]
    return rows


def backward(full: bool) -> list[Row]:
    """Gradients of tokens, weights and routing weights at 2048 tokens, beside torch's autograd."""
    large = FEW_LARGE.with_(work="backward")
    small = MANY.with_(work="backward", experts=32)  # the gradients of 128 take as much memory as the weights
    cases = [large, large.with_(dtype="fp32")]
    if full:
        cases += [large.with_(dtype="fp16"), small, small.with_(dtype="fp32"), small.with_(inter=176)]
        cases += [large.with_(threads=2)]
    rows = []
    for case in cases:
        ahead = 5.0 if case.dtype == "fp16" else 1.5
        bars = (PercentOfPeak(dot=87, fma=87, avx2=87), Ahead("torch-grouped", ahead, ahead, ahead))
        rows.append(Row(case, peers=GROUPED, bars=bars))
    return rows


def quantized(full: bool) -> list[Row]:
    """int8 and int4 weights beside bf16 ones."""
    rows = []
    for shape in SHAPES if full else (FEW_LARGE,):
        for tokens in (1, 4, 16, 2048):
            case = shape.with_(tokens=tokens)
            for kind, gain in GAINS.items():
                if kind == "int4" and case.inter % case.group:
                    continue  # groups divide a row of weights
                # At 16 tokens it is up to the unit whether memory or products decide: no figure.
                bars = {16: (), 2048: (SpeedUp("bf16", 1.0),)}.get(tokens, (SpeedUp("bf16", gain),))
                rows.append(Row(case.with_(weight_dtype=kind), {"bf16": case}, peers=(), bars=bars))
    return rows


def route(full: bool) -> list[Row]:
    """Choosing experts and ordering tokens: its share of the layer, with more tokens, on more threads."""
    rows = []
    for shape in (FEW_LARGE, MANY) if full else (FEW_LARGE,):
        case = RouteCase(shape.tokens, shape.hidden, shape.experts, shape.top_k)
        bars = (ShareOfLayer("experts", 2), Ahead("torch-grouped"))
        rows.append(Row(case, {"experts": shape}, peers=GROUPED, bars=bars))
        rows.append(
            Row(case.with_(threads=2), {"1 thread": case}, peers=(), bars=(SpeedUp("1 thread", 1.5),))
        )
        # Both copy more rows than caches hold.
        many = case.with_(tokens=8192)
        bars = (CostPerToken("4 x the tokens", 1.2),)
        rows.append(Row(many, {"4 x the tokens": many.with_(tokens=32768)}, peers=(), bars=bars))
    return rows


def isas(full: bool) -> list[Row]:
    """Every instruction set of this machine, forced."""
    rows = []
    for name in ("amx", "avx512_bf16", "avx512", "avx2", "neon", "portable"):
        # The portable kernel is for correctness; its rows are kept short.
        case = FEW_LARGE.with_(tokens=64 if name == "portable" else 2048)
        for dtype in ("bf16", "fp16", "fp32"):
            bars = _peak(case) if name != "portable" else ()
            rows.append(Row(case.with_(dtype=dtype), peers=(), bars=bars, isa=name))
    return rows


SUITES: dict[str, Callable[[bool], list[Row]]] = {
    "moe_many": many_tokens,
    "moe_few": few_tokens,
    "moe_backward": backward,
    "moe_quantized": quantized,
    "moe_route": route,
    "moe_isa": isas,
}
