"""The figures to reach, each as a rule that judges a measured row."""

from __future__ import annotations

from dataclasses import dataclass

from bench.row import Result, Verdict


def unit_of(isa: str, dtype: str) -> str:
    """What multiplies: 'amx', 'dot' (AVX512-BF16), 'fma' (AVX-512, no unit for the dtype), else the ISA."""
    if dtype == "bf16" and isa in ("amx", "avx512_bf16"):
        return {"amx": "amx", "avx512_bf16": "dot"}[isa]
    return "fma" if isa in ("amx", "avx512_bf16", "avx512") else isa


@dataclass(frozen=True)
class PercentOfPeak:
    """At least this percent of the unit's peak in the same run; units without a figure are not judged."""

    dot: float | None = None
    amx: float | None = None
    fma: float | None = None
    avx2: float | None = None

    def judge(self, result: Result) -> Verdict | None:
        bar = getattr(self, unit_of(result.isa, result.row.case.dtype), None)
        if bar is None or result.base.percent is None:
            return None
        return Verdict("% of peak", result.base.percent, ">=", bar)


@dataclass(frozen=True)
class Ahead:
    """Faster than a peer; by how much may depend on the unit."""

    peer: str
    ratio: float = 1.0
    ratio_dot: float = 1.0
    ratio_amx: float = 1.0

    def judge(self, result: Result) -> Verdict | None:
        ratio = result.ratio(self.peer)
        if ratio is None:
            return None
        unit = unit_of(result.isa, result.row.case.dtype)
        bar = {"dot": self.ratio_dot, "amx": self.ratio_amx}.get(unit, self.ratio)
        return Verdict(f"times {self.peer}", ratio, ">=", bar)


@dataclass(frozen=True)
class PointsBelow:
    """At most so many percentage points of the peak below a variant."""

    variant: str
    points: float

    def judge(self, result: Result) -> Verdict | None:
        other = result.entries.get(self.variant)
        if other is None or other.percent is None or result.base.percent is None:
            return None
        return Verdict(f"points below {self.variant}", other.percent - result.base.percent, "<=", self.points)


@dataclass(frozen=True)
class CostPerWork:
    """Time per useful operation, relative to a variant, less one read of the mask at the measured rate."""

    variant: str
    factor: float

    def judge(self, result: Result) -> Verdict | None:
        other = result.entries.get(self.variant)
        if other is None:
            return None
        seconds = result.base.seconds
        if result.row.case.mask_bytes and result.bandwidth:
            seconds -= result.row.case.mask_bytes / (result.bandwidth * 1e9)
        cost = (seconds / result.base.case.flops) / (other.seconds / other.case.flops)
        return Verdict(f"cost beside {self.variant}", cost, "<=", self.factor)


@dataclass(frozen=True)
class SpeedUp:
    """Faster than a variant (the same work with fewer threads) by this factor."""

    variant: str
    factor: float

    def judge(self, result: Result) -> Verdict | None:
        ratio = result.ratio(self.variant)
        return None if ratio is None else Verdict(f"times {self.variant}", ratio, ">=", self.factor)
