"""The suites that measure points instead of rows, each in its own module, behind one interface."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from bench import cache_error_suite, experts_memory_suite, loss_suite, memory_suite
from bench.record import DEFAULT_OUTPUT
from bench.row import Verdict
from bench.summary import (
    CACHE_ERROR_SUITE,
    EXPERTS_MEMORY_SUITE,
    LOSS_SUITE,
    MEMORY_SUITES,
    TRAINING_SUITE,
)

Point = dict[str, Any]


@dataclass(frozen=True)
class PointSuite:
    """groups: points as they are measured, those of one case together. judge: of a group, or of all."""

    title: str
    groups: Iterable[list[Point]]
    lines_of: Callable[[list[Point]], list[str]]
    judge: Callable[[list[Point]], list[Verdict]]
    judges_all: bool

    def run(self, result: dict[str, Any]) -> None:
        """Prints, and fills result["points"] and result["bars"], as the points come."""
        print(f"\n{self.title}")
        result |= {"points": [], "bars": []}
        for group in self.groups:
            print("\n".join(self.lines_of(group)), flush=True)
            result["points"] += group
            if not self.judges_all:
                self._judge(group, result)
        if self.judges_all:
            self._judge(result["points"], result)

    def _judge(self, points: list[Point], result: dict[str, Any]) -> None:
        for verdict in self.judge(points):
            print(f"  bar: {verdict}")
            result["bars"].append({**verdict.__dict__, "pass": verdict.passed})


@dataclass(frozen=True)
class Settings:
    """What the command line says about them; None is the suite's own default."""

    full: bool
    threads: int | None
    layers: int | None
    peers: list[str]


def open_suite(name: str, settings: Settings, notes: list[str]) -> PointSuite:
    """name: one of summary.POINT_SUITES. What is skipped goes to notes. Measures nothing yet."""
    if name in MEMORY_SUITES:
        of = memory_suite.SUITES[name]
        points = memory_suite.run(of.cases(settings.full), settings.peers, notes)
        return _of_single_points(name, memory_suite, points, of.judge)
    if name == EXPERTS_MEMORY_SUITE:
        points = experts_memory_suite.run(settings.full, settings.peers, notes)
        return _of_single_points(name, experts_memory_suite, points, experts_memory_suite.judge)
    if name == LOSS_SUITE:
        points = loss_suite.run(settings.full, settings.threads, notes)
        return _of_single_points(name, loss_suite, points, loss_suite.judge)
    if name == CACHE_ERROR_SUITE:
        points = cache_error_suite.run(1024 if settings.full else 384)
        return _of_single_points(name, cache_error_suite, points, cache_error_suite.judge)
    # transformers is needed for nothing else
    if name == TRAINING_SUITE:
        from bench import training_suite as module

        groups = module.run(module.cases(settings.full, settings.layers, DEFAULT_OUTPUT), notes)
    else:
        from bench import serving_suite as module

        groups = module.run(module.cases(settings.full, settings.layers), settings.threads, notes)
    return PointSuite(f"{name}: {module.__doc__}", groups, module.lines_of, module.judge, judges_all=False)


def _of_single_points(name: str, module: Any, points: Iterable[Point], judge: Callable) -> PointSuite:
    return PointSuite(
        f"{name}: {module.__doc__}",
        ([point] for point in points),
        lambda group: [module.line_of(point) for point in group],
        judge,
        judges_all=True,
    )
