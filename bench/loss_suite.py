"""Linear layer and cross-entropy, forward and backward, beside torch: time, and memory beyond the inputs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from bench.contenders import Unavailable
from bench.loss_case import LossCase
from bench.row import Verdict
from bench.table import percent_text, time_text
from bench.worker_process import WorkerProcess

MIB = 1 << 20
OURS = "tileformer-loss"
TURNS = 2  # besides the one that memory is measured in


def cases(full: bool) -> list[tuple[LossCase, tuple[str, ...]]]:
    """SmolLM2's shape. Torch's own bf16 takes minutes on CPUs without bf16 products: few rows."""
    shape = LossCase(rows=4096, hidden=576, vocab=49152)
    rows = [
        (shape, ("torch-loss",)),
        (shape.with_(dtype="bf16"), ("torch-loss-fp32",)),
    ]
    if full:
        rows.append((shape.with_(rows=64, dtype="bf16"), ("torch-loss", "torch-loss-fp32")))
    return rows


def _open(contender: str, case: LossCase) -> WorkerProcess:
    """A fresh process, checked and warmed up on a small problem."""
    worker = WorkerProcess(contender)
    small = case.with_(rows=64, vocab=1024)
    for key, problem in (("small", small), ("case", case)):
        answer = worker.ask("prepare_loss", key=key, case=problem.to_json(), check=problem is small)
        if "unsupported" in answer:
            worker.close()
            raise Unavailable(answer["unsupported"])
    return worker


def _measure(case: LossCase, peers: tuple[str, ...], notes: list[str]) -> Iterator[dict[str, Any]]:
    workers: dict[str, WorkerProcess] = {}
    try:
        for name in (OURS, *peers):
            try:
                workers[name] = _open(name, case)
            except Unavailable as reason:
                notes.append(f"{name}: {case.label}: {reason}")
        if OURS not in workers:
            return
        memory = {name: worker.ask("memory", key="case") for name, worker in workers.items()}
        seconds = {name: answer["seconds"] for name, answer in memory.items()}
        peak = 0.0
        for _ in range(TURNS):
            for name, worker in workers.items():
                seconds[name] = min(seconds[name], worker.ask("time", key="case", seconds=0)["best"])
            peak = max(peak, workers[OURS].ask("peak", dtype="fp32")["gflops"] or 0.0)
        for name in workers:
            gflops = case.flops / seconds[name] / 1e9
            yield {
                "contender": name,
                "isa": workers[OURS].description["isa"],
                "case": case.to_json(),
                "seconds": seconds[name],
                "gflops": gflops,
                "percent_of_fp32_peak": 100 * gflops / (peak * case.threads) if peak else None,
                "ratio": seconds[name] / seconds[OURS],
                "extra_bytes": memory[name]["extra_bytes"],
                "memory_ratio": memory[name]["extra_bytes"] / max(memory[OURS]["extra_bytes"], 1),
            }
    finally:
        for worker in workers.values():
            worker.close()


def run(full: bool, threads: int | None, notes: list[str]) -> Iterator[dict[str, Any]]:
    """Points as they are measured; what is skipped goes to notes."""
    for case, peers in cases(full):
        yield from _measure(case.with_(threads=threads or case.threads), peers, notes)


def line_of(point: dict[str, Any]) -> str:
    """One point as text."""
    case = LossCase(**point["case"])
    figures = f"{time_text(point['seconds']):>8} {point['gflops']:>6.1f} GFLOP/s"
    figures += f" {percent_text(point['percent_of_fp32_peak']):>5} % of fp32 peak"
    figures += f" {point['extra_bytes'] / MIB:>8.1f} MiB beyond inputs"
    ratios = f"time {point['ratio']:.2f}x memory {point['memory_ratio']:.1f}x of ours"
    return f"{case.label:<28} {case.threads:>3} {point['contender']:<16} {figures}  {ratios}"


def judge(points: list[dict[str, Any]]) -> list[Verdict]:
    """Not slower than any peer, in at most half of its memory (both gradients are in it)."""
    verdicts = []
    for point in points:
        if point["contender"] != OURS:
            what = f"{point['contender']} {LossCase(**point['case']).label}"
            verdicts.append(Verdict(f"times {what}", point["ratio"], ">=", 1.0))
            verdicts.append(Verdict(f"memory of {what} over ours", point["memory_ratio"], ">=", 2.0))
    return verdicts
