"""A process that holds one contender and times it on request.

The parent sends one JSON object per line on stdin and reads one per line from the original stdout.
Whatever libraries print goes to stderr. Requests ("do"):

  open     contender              -> the contender's description, or {"unavailable": reason}
  prepare  key, case, check       -> {"error": relative error or null}, or {"unsupported": reason}
  prepare_loss                    the same for a LossCase
  prepare_paged, prepare_append   the same for a PagedCase or an AppendCase, and "cache_bytes"
  prepare_experts, prepare_route  the same for an ExpertsCase or a RouteCase
  time     key, seconds           -> {"best": seconds per call, "calls": number of calls}
  peak     dtype                  -> {"gflops": one thread's peak of the unit in use, or null}
  bandwidth  kind, bytes, threads -> {"gb_per_s": "read" or "write" through a buffer of so many bytes}
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

from bench import contenders, experts_inputs, paged_inputs, route_inputs
from bench.case import AttentionCase
from bench.experts_case import ExpertsCase, RouteCase
from bench.experts_gradients import gradient_call
from bench.experts_gradients import gradient_error as experts_gradient_error
from bench.gradients import backward_call, gradient_error
from bench.inputs import TOLERANCE, error_of, make_inputs
from bench.loss_case import LossCase, LossInputs
from bench.memory import peak_of_call
from bench.paged_case import AppendCase, PagedCase

LEAST_BANDWIDTH_BYTES = 1 << 20  # of tileformer's measure_*_bandwidth
DTYPE_CODES = {"fp32": 0, "fp16": 1, "bf16": 2}  # tileformer::DType


class Worker:
    """Answers requests; one instance per process."""

    def __init__(self) -> None:
        self.contender: contenders.Contender | None = None
        self.prepared: dict[str, tuple[Any, Callable[[], Any]]] = {}  # a case and its call

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

    def prepare_paged(self, key: str, case: dict[str, Any], check: bool = True) -> dict[str, Any]:
        return self._prepare_cache(key, PagedCase(**case), "prepare_paged", check)

    def prepare_append(self, key: str, case: dict[str, Any], check: bool = True) -> dict[str, Any]:
        return self._prepare_cache(key, AppendCase(**case), "prepare_append", check)

    def _prepare_cache(
        self, key: str, problem: PagedCase | AppendCase, method: str, check: bool
    ) -> dict[str, Any]:
        if not hasattr(self.contender, method):
            return {"unsupported": "it has no such operator"}
        torch.set_num_threads(problem.threads)
        try:
            inputs = paged_inputs.PagedInputs.of(problem)
            prepared = getattr(self.contender, method)(problem, inputs)
            checked = check and prepared.output is not None
            error = paged_inputs.error_of(inputs, prepared.output()) if checked else None
        except (contenders.Unsupported, RuntimeError, ValueError, TypeError) as reason:
            return {"unsupported": str(reason).splitlines()[0]}
        if error is not None and not error <= paged_inputs.tolerance_of(problem):
            return {"unsupported": f"wrong result: relative error {error:.2g}"}
        self.prepared[key] = problem, prepared.run
        return {"error": error, "cache_bytes": prepared.cache_bytes}

    def prepare_experts(self, key: str, case: dict[str, Any], check: bool = True) -> dict[str, Any]:
        problem = ExpertsCase(**case)
        if not hasattr(self.contender, "prepare_experts"):
            return {"unsupported": "it has no such operator"}
        torch.set_num_threads(problem.threads)
        try:
            inputs = experts_inputs.ExpertsInputs.of(problem)
            call = experts_inputs.in_turn(self.contender.prepare_experts(problem, inputs))
            judge = experts_inputs.error_of
            if problem.work != "forward":
                call, judge = gradient_call(inputs, call), experts_gradient_error
            error = judge(inputs, call()) if check else None
        except (contenders.Unsupported, RuntimeError, ValueError, TypeError) as reason:
            return {"unsupported": str(reason).splitlines()[0]}
        if error is not None and not error <= experts_inputs.tolerance_of(problem):
            return {"unsupported": f"wrong result: relative error {error:.2g}"}
        self.prepared[key] = problem, call
        return {"error": error}

    def prepare_route(self, key: str, case: dict[str, Any]) -> dict[str, Any]:
        problem = RouteCase(**case)
        if not hasattr(self.contender, "prepare_route"):
            return {"unsupported": "it has no such operator"}
        torch.set_num_threads(problem.threads)
        hidden, logits = route_inputs.route_inputs(problem)
        call = self.contender.prepare_route(problem, hidden, logits)
        error = route_inputs.route_error(problem, hidden, logits, call())
        if not error <= route_inputs.TOLERANCE:
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

    def bandwidth(self, kind: str, bytes: int, threads: int) -> dict[str, Any]:
        torch.set_num_threads(threads)
        measure = getattr(torch.ops.tileformer, f"measure_{kind}_bandwidth")
        return {"gb_per_s": measure(max(bytes, LEAST_BANDWIDTH_BYTES))}

    def memory(self, key: str) -> dict[str, Any]:
        case, call = self.prepared[key]
        torch.set_num_threads(case.threads)
        return peak_of_call(call)

    def forget(self) -> dict[str, Any]:
        self.prepared.clear()
        paged_inputs.forget()
        experts_inputs.forget()
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
