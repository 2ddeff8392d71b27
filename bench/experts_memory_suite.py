"""Peak memory of a training step of the experts beside torch's, a fresh process per point."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from bench.contenders import Unavailable
from bench.experts_case import ITEM_BYTES, ExpertsCase
from bench.experts_suites import FEW_LARGE, MANY
from bench.row import BASE, Verdict
from bench.table import time_text
from bench.worker_process import WorkerProcess

MIB = 1 << 20
GROUPED = "torch-grouped"
CONTENDERS = (BASE, GROUPED, "torch-loop")
LESS = 60  # percent of GROUPED's


def cases(full: bool) -> list[ExpertsCase]:
    """2048 tokens and, with `full`, more of them and more experts."""
    step = FEW_LARGE.with_(work="step", threads=2)
    more = [step.with_(tokens=8192, dtype="fp32"), MANY.with_(work="step", threads=2, experts=32)]
    return [step, step.with_(dtype="fp32"), *(more if full else ())]


def tensor_bytes(case: ExpertsCase) -> int:
    """Tokens, weights and routing weights, and the gradient of each."""
    plain = case.experts * case.expert_bytes + case.tokens * case.hidden * ITEM_BYTES[case.dtype]
    return 2 * (int(plain) + case.tokens * case.top_k * ITEM_BYTES["fp32"])


def _measure(contender: str, case: ExpertsCase) -> dict[str, Any]:
    """One step in a fresh process, warmed up and checked on a small problem. Raises Unavailable."""
    worker = WorkerProcess(contender)
    try:
        small = case.with_(tokens=16, hidden=64, inter=32)
        for key, problem in (("warm-up", small), ("case", case)):
            answer = worker.ask("prepare_experts", key=key, case=problem.to_json(), check=problem is small)
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


def run(full: bool, peers: list[str], notes: list[str]) -> Iterator[dict[str, Any]]:
    """Points as they are measured; what is skipped goes to notes."""
    for case in cases(full):
        for contender in CONTENDERS:
            if contender != BASE and contender not in peers:
                continue
            try:
                yield _measure(contender, case)
            except Unavailable as reason:
                notes.append(f"{contender}: {case.label}: {reason}")


def line_of(point: dict[str, Any]) -> str:
    """One point as text."""
    case = ExpertsCase(**point["case"])
    extra, tensors = point["extra_bytes"] / MIB, point["tensor_bytes"] / MIB
    figures = f"{extra:>9.1f} MiB beyond {tensors:.0f} MiB of tensors and gradients"
    figures += f", {time_text(point['seconds'])}"
    return f"{case.label:<50} {case.threads:>3} {point['contender']:<14} {figures}"


def judge(points: list[dict[str, Any]]) -> list[Verdict]:
    """What a step takes beyond tensors and gradients, which are the same for all, beside torch's."""
    of = {(point["contender"], ExpertsCase(**point["case"])): point for point in points}
    verdicts = []
    for (contender, case), own in of.items():
        peer = of.get((GROUPED, case))
        if contender == BASE and peer is not None:
            percent = 100 * own["extra_bytes"] / max(peer["extra_bytes"], 1)
            verdicts.append(Verdict(f"% of {GROUPED}'s memory, {case.label}", percent, "<=", LESS))
    return verdicts
