"""A process that holds one contender and times it on request.

The parent sends one JSON object per line on stdin and reads one per line from the original stdout.
Whatever libraries print goes to stderr. Requests ("do"):

  open     contender              -> the contender's description, or {"unavailable": reason}
  prepare  key, case, check       -> {"error": relative error or null}, or {"unsupported": reason}
  prepare_loss                    the same for a LossCase
  time     key, seconds           -> {"best": seconds per call, "calls": number of calls}
  peak     dtype                  -> {"gflops": one thread's peak of the unit in use, or null}
  read     threads                -> {"gb_per_s": streaming read of memory}
  memory   key                    -> {"seconds", "extra_bytes": peak of the call beyond its output}
  forget                          -> {}
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

import torch

from bench import contenders
from bench.case import AttentionCase
from bench.gradients import backward_call, gradient_error
from bench.inputs import TOLERANCE, error_of, make_inputs
from bench.loss_case import LossCase, LossInputs
from bench.memory import peak_of_call

DTYPE_CODES = {"fp32": 0, "fp16": 1, "bf16": 2}  # tileformer::DType


class Worker:
    """Answers requests; one instance per process."""

    def __init__(self) -> None:
        self.contender: contenders.Contender | None = None
        self.prepared: dict[str, tuple[AttentionCase | LossCase, Callable[[], Any]]] = {}

    def open(self, contender: str) -> dict[str, Any]:
        try:
            self.contender = contenders.open_contender(contender)
        except contenders.Unavailable as error:
            return {"unavailable": str(error)}
        return self.contender.describe()

    def prepare(self, key: str, case: dict[str, Any], check: bool = True) -> dict[str, Any]:
        problem = AttentionCase(**case)
        torch.set_num_threads(problem.threads)
        with torch.inference_mode(not problem.backward):
            inputs = make_inputs(problem)
        try:
            if problem.backward:
                call = backward_call(self.contender, problem, inputs)
                error = gradient_error(problem, inputs, call()) if check else None
            else:
                call = self.contender.prepare(problem, inputs)
                error = error_of(problem, inputs, call()) if check else None
        except (contenders.Unsupported, RuntimeError, ValueError, TypeError) as reason:
            return {"unsupported": str(reason).splitlines()[0]}
        # `not <=` also refuses a NaN.
        if error is not None and not error <= TOLERANCE[problem.dtype]:
            return {"unsupported": f"wrong result: relative error {error:.2g}"}
        self.prepared[key] = problem, call
        return {"error": error}

    def prepare_loss(self, key: str, case: dict[str, Any], check: bool = True) -> dict[str, Any]:
        problem = LossCase(**case)
        torch.set_num_threads(problem.threads)
        with torch.inference_mode(False):
            inputs = LossInputs.of(problem)
            call = inputs.step(self.contender.loss())
            error = inputs.error_of(call()) if check else None
        if error is not None and not error <= TOLERANCE[problem.dtype]:
            return {"unsupported": f"wrong result: relative error {error:.2g}"}
        self.prepared[key] = problem, call
        return {"error": error}

    def time(self, key: str, seconds: float) -> dict[str, Any]:
        case, call = self.prepared[key]
        torch.set_num_threads(case.threads)
        # The first call of a turn finds caches as the others left them; the best call is what counts.
        best, spent, calls = float("inf"), 0.0, 0
        # A call far shorter than the clock's own cost is timed in groups.
        group = 1
        while spent < seconds or calls == 0:
            start = time.perf_counter()
            for _ in range(group):
                call()
            elapsed = time.perf_counter() - start
            best, spent, calls = min(best, elapsed / group), spent + elapsed, calls + group
            if elapsed < 100e-6:
                group *= 4
        return {"best": best, "calls": calls}

    def peak(self, dtype: str) -> dict[str, Any]:
        measure = getattr(torch.ops.tileformer, "measure_peak", None)
        return {"gflops": measure(DTYPE_CODES[dtype]) if measure is not None else None}

    def read(self, threads: int) -> dict[str, Any]:
        torch.set_num_threads(threads)
        data = torch.ones(64 << 20)
        best = float("inf")
        for _ in range(5):
            start = time.perf_counter()
            data.sum()
            best = min(best, time.perf_counter() - start)
        return {"gb_per_s": data.numel() * 4 / best / 1e9}

    def memory(self, key: str) -> dict[str, Any]:
        case, call = self.prepared[key]
        torch.set_num_threads(case.threads)
        return peak_of_call(call)

    def forget(self) -> dict[str, Any]:
        self.prepared.clear()
        return {}


def serve() -> None:
    """Answers until stdin closes."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    worker = Worker()
    with torch.inference_mode():
        for line in sys.stdin:
            request = json.loads(line)
            answer = getattr(worker, request.pop("do"))(**request)
            print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    serve()
