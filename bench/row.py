"""What a suite asks for (Row) and what the runner found (Result)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from bench.case import AttentionCase
from bench.experts_case import ExpertsCase, RouteCase
from bench.paged_case import AppendCase, PagedCase

BASE = "tileformer"
Case = AttentionCase | PagedCase | AppendCase | ExpertsCase | RouteCase


class Bar(Protocol):
    """A figure that the row has to reach."""

    def judge(self, result: Result) -> Verdict | None:
        """None where the bar does not apply (another ISA, a peer that is not here)."""
        ...


@dataclass(frozen=True)
class Row:
    """One line of a table: tileformer on `case`, its peers on the same case, and variants of it.

    Everything in a row is timed alternately. variants: other cases that tileformer runs beside it, by name.
    isa: forced for tileformer; None = the best of the machine.
    """

    case: Case
    variants: dict[str, Case] = field(default_factory=dict)
    peers: Sequence[str] = ("torch-flash", "zentorch", "vllm")
    bars: Sequence[Bar] = ()
    isa: str | None = None

    def with_threads(self, threads: int) -> Row:
        """The same row on another number of threads, variants included."""
        variants = {name: case.with_(threads=threads) for name, case in self.variants.items()}
        return replace(self, case=self.case.with_(threads=threads), variants=variants)


@dataclass
class Entry:
    """A contender or variant of a row. percent: of the same run's peak (times threads), None without one.

    gb_per_s, percent_of_bandwidth: of the case's traffic, where it has one; cache_bytes: of its pools.
    """

    case: Case
    seconds: float
    calls: int
    error: float | None
    gflops: float
    percent: float | None
    gb_per_s: float | None = None
    percent_of_bandwidth: float | None = None
    cache_bytes: int | None = None


@dataclass(frozen=True)
class Verdict:
    """Whether a bar was reached. relation: '>=' or '<='."""

    what: str
    value: float
    relation: str
    bar: float

    @property
    def passed(self) -> bool:
        return self.value >= self.bar if self.relation == ">=" else self.value <= self.bar

    def __str__(self) -> str:
        outcome = "pass" if self.passed else "SHORT"
        return f"{self.what} {self.value:.3g} {self.relation} {self.bar:g}: {outcome}"


@dataclass
class Result:
    """A measured row. entries: 'tileformer', the peers that ran, and the variants by name."""

    suite: str
    row: Row
    isa: str
    peak: float | None  # GFLOP/s of one thread
    bandwidth: float | None  # GB/s that the row's traffic is judged by, with the row's threads
    entries: dict[str, Entry]
    verdicts: list[Verdict] = field(default_factory=list)

    @property
    def base(self) -> Entry:
        return self.entries[BASE]

    def ratio(self, name: str) -> float | None:
        """Time of another entry over ours: above 1 we are faster. None if it did not run."""
        return self.entries[name].seconds / self.base.seconds if name in self.entries else None

    def to_json(self) -> dict[str, Any]:
        """Flat and complete: what compare, plots and README are made from."""
        return {
            "suite": self.suite,
            "label": self.row.case.label,
            "threads": self.row.case.threads,
            "isa": self.isa,
            "forced_isa": self.row.isa,
            "peak_gflops": self.peak,
            "bandwidth_gb_per_s": self.bandwidth,
            "entries": {
                name: {
                    "case": entry.case.to_json(),
                    "seconds": entry.seconds,
                    "calls": entry.calls,
                    "relative_error": entry.error,
                    "gflops": entry.gflops,
                    "percent_of_peak": entry.percent,
                    "gb_per_s": entry.gb_per_s,
                    "percent_of_bandwidth": entry.percent_of_bandwidth,
                    "cache_bytes": entry.cache_bytes,
                    "ratio": self.ratio(name),
                }
                for name, entry in self.entries.items()
            },
            "bars": [{**verdict.__dict__, "pass": verdict.passed} for verdict in self.verdicts],
        }
