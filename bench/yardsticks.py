"""What the machine reaches during a row: multiplying, and moving memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bench.row import Case

Ask = Callable[..., dict[str, Any] | None]  # a request to tileformer's worker


class Yardsticks:
    """Measured between the turns of a row; the best of the row counts."""

    def __init__(self, ask: Ask, cases: list[Case]) -> None:
        """cases: all that the row times, tileformer's first."""
        self._ask, self._case = ask, cases[0]
        self.peak: float | None = None  # GFLOP/s of one thread
        self._rates: dict[int, float] = {}
        needs = self._case.traffic_bytes or self._case.mask_bytes
        self._threads = {case.threads for case in cases} if needs else set()

    def measure(self) -> None:
        """Once each."""
        case = self._case
        if case.flops:
            answer = self._ask("peak", dtype=case.dtype) or {}
            self.peak = max(self.peak or 0.0, answer.get("gflops") or 0.0) or None
        for threads in self._threads:
            kind = "read" if case.mask_bytes else case.bandwidth
            answer = self._ask("bandwidth", kind=kind, bytes=case.stream_bytes, threads=threads) or {}
            self._rates[threads] = max(self._rates.get(threads, 0.0), answer.get("gb_per_s") or 0.0)

    def bandwidth(self, threads: int) -> float | None:
        """GB/s of so many threads together."""
        return self._rates.get(threads) or None
