"""Peak memory and time over the sequence length beside torch's flash and math, a fresh process per point."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from bench.case import AttentionCase
from bench.contenders import Unavailable
from bench.inputs import DTYPES
from bench.row import BASE, Verdict
from bench.table import time_text
from bench.worker_process import WorkerProcess

MIB = 1 << 20
CONTENDERS = (BASE, "torch-flash", "torch-math")
# Unfused attention holds about three score tensors at a time; beyond half of the memory it is not started.
MATH_SCORE_TENSORS = 3


def available_bytes() -> int:
    """MemAvailable of the machine."""
    with open("/proc/meminfo") as lines:
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))


def tensor_bytes(case: AttentionCase) -> int:
    """query, key, value and output."""
    rows = case.batch * case.seq * (2 * case.heads + 2 * case.kv_heads)
    return rows * case.dim * DTYPES[case.dtype].itemsize


def fits(contender: str, case: AttentionCase) -> bool:
    """Whether it is sane to start: only unfused attention grows with the square of the length."""
    scores = case.batch * case.heads * case.seq**2 * 4
    return contender != "torch-math" or MATH_SCORE_TENSORS * scores < available_bytes() / 2


def measure(contender: str, case: AttentionCase) -> dict[str, Any]:
    """One call in a fresh process, warmed up on a small problem. Raises Unavailable."""
    worker = WorkerProcess(contender)
    try:
        small = case.with_(seq=64, batch=1)
        for key, problem in (("warm-up", small), ("case", case)):
            answer = worker.ask("prepare", key=key, case=problem.to_json(), check=problem is small)
            if "unsupported" in answer:
                raise Unavailable(answer["unsupported"])
        return {
            "contender": contender,
            "isa": worker.description.get("isa"),
            "case": case.to_json(),
            "tensor_bytes": tensor_bytes(case),
            **worker.ask("memory", key="case"),
        }
    finally:
        worker.close()


def curve_cases(full: bool) -> list[AttentionCase]:
    """8 query heads on 2 kv heads, causal, 1K tokens to 16K, with `full` to 128K."""
    top = 18 if full else 15
    shape = {"dim": 128, "heads": 8, "kv_heads": 2, "causal": True, "threads": 2}
    return [AttentionCase(seq=1 << power, **shape) for power in range(10, top)]


def run(cases: list[AttentionCase], peers: list[str], notes: list[str]) -> Iterator[dict[str, Any]]:
    """Points as they are measured; what is skipped goes to notes."""
    for case in cases:
        for contender in (BASE,) if case.backward else CONTENDERS:
            if contender != BASE and contender not in peers:
                continue
            if not fits(contender, case):
                notes.append(f"{contender}: {case.label} not started: its scores would not fit into memory")
                continue
            try:
                yield measure(contender, case)
            except Unavailable as reason:
                notes.append(f"{contender}: {case.label}: {reason}")


def line_of(point: dict[str, Any]) -> str:
    """One point as text."""
    case = AttentionCase(**point["case"])
    extra, tensors = point["extra_bytes"] / MIB, point["tensor_bytes"] / MIB
    figures = f"{extra:>9.1f} MiB beyond {tensors:.0f} MiB of tensors, {time_text(point['seconds'])}"
    return f"{case.label:<50} {case.threads:>3} {point['contender']:<11} {figures}"


def published_case(full: bool) -> AttentionCase:
    """The shape of the published comparison with unfused attention: batch 8, N = 4096, D = 128."""
    return AttentionCase(dim=128, seq=4096, batch=8, heads=8 if full else 1, threads=2)


def backward_cases(full: bool) -> list[AttentionCase]:
    """The backward alone: torch's takes as little, and minutes where it has no unit for the dtype."""
    shape = {"dim": 128, "heads": 8, "kv_heads": 2, "causal": True, "threads": 2, "backward": True}
    return [AttentionCase(seq=seq, **shape) for seq in [4096, 8192] + ([32768] if full else [])]


def judge_curve(points: list[dict[str, Any]]) -> list[Verdict]:
    """At most 64 MiB beyond inputs and outputs at the longest length."""
    ours = [point for point in points if point["contender"] == BASE]
    if not ours:
        return []
    longest = max(ours, key=lambda point: point["case"]["seq"])
    what = f"MiB beyond inputs and outputs at N={longest['case']['seq']}"
    return [Verdict(what, longest["extra_bytes"] / MIB, "<=", 64)]


def judge_published(points: list[dict[str, Any]]) -> list[Verdict]:
    """Memory (tensors included) at least 75 % and latency at least 71 % below unfused attention."""
    by_name = {point["contender"]: point for point in points}
    if BASE not in by_name or "torch-math" not in by_name:
        return []
    ours, unfused = by_name[BASE], by_name["torch-math"]

    def below(value: float, of: float) -> float:
        return 100 * (1 - value / of)

    memory = [point["extra_bytes"] + point["tensor_bytes"] for point in (ours, unfused)]
    return [
        Verdict("% less memory than unfused", below(*memory), ">=", 75),
        Verdict("% less time than unfused", below(ours["seconds"], unfused["seconds"]), ">=", 71),
    ]


@dataclass(frozen=True)
class MemorySuite:
    """What is measured, with `full` or without, and how it is judged."""

    cases: Callable[[bool], list[AttentionCase]]
    judge: Callable[[list[dict[str, Any]]], list[Verdict]]


SUITES = {
    "memory": MemorySuite(curve_cases, judge_curve),
    "published": MemorySuite(lambda full: [published_case(full)], judge_published),
    "backward_memory": MemorySuite(backward_cases, judge_curve),
}
