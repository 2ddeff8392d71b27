"""The figures that decode, append and prefill over pages have to reach."""

from __future__ import annotations

from dataclasses import dataclass

from bench.row import Result, Verdict


@dataclass(frozen=True)
class PercentOfBound:
    """Of what bounds the row on this machine: the read bandwidth, or, where the unit's products allow less,
    the multiply peak. With eight query heads on a kv head and bf16 dot products (64 cycles a key of 128 dims)
    the two are near each other; FMA units reach the peak with fewer heads.
    """

    read: float
    multiply: float = 85

    def judge(self, result: Result) -> Verdict | None:
        base = result.base
        if base.percent_of_bandwidth is None or base.percent is None:
            return None
        # Both are of one time: their ratio is the share of the bandwidth that the products allow.
        if self.multiply * base.percent_of_bandwidth < self.read * base.percent:
            return Verdict("% of multiply peak", base.percent, ">=", self.multiply)
        return Verdict("% of read bandwidth", base.percent_of_bandwidth, ">=", self.read)


@dataclass(frozen=True)
class PercentOfBandwidth:
    """At least this percent of what a plain stream through as many bytes gets."""

    percent: float

    def judge(self, result: Result) -> Verdict | None:
        if result.base.percent_of_bandwidth is None:
            return None
        what = f"% of {result.row.case.bandwidth} bandwidth"
        return Verdict(what, result.base.percent_of_bandwidth, ">=", self.percent)


@dataclass(frozen=True)
class BandwidthPointsBelow:
    """At most so many percentage points of the read bandwidth below a variant."""

    variant: str
    points: float

    def judge(self, result: Result) -> Verdict | None:
        other = result.entries.get(self.variant)
        if other is None or None in (other.percent_of_bandwidth, result.base.percent_of_bandwidth):
            return None
        below = other.percent_of_bandwidth - result.base.percent_of_bandwidth
        return Verdict(f"points of bandwidth below {self.variant}", below, "<=", self.points)


@dataclass(frozen=True)
class BothCores:
    """So many times the speed of one thread, unless the threads together are at `enough` percent of the
    bandwidth already.
    """

    variant: str
    factor: float
    enough: float

    def judge(self, result: Result) -> Verdict | None:
        ratio, percent = result.ratio(self.variant), result.base.percent_of_bandwidth
        if ratio is None:
            return None
        if ratio < self.factor and percent is not None and percent >= self.enough:
            return Verdict("% of read bandwidth", percent, ">=", self.enough)
        return Verdict(f"times {self.variant}", ratio, ">=", self.factor)


@dataclass(frozen=True)
class PeakBeside:
    """The percent of the multiply peak is at most `within` percent lower than a variant's."""

    variant: str
    within: float

    def judge(self, result: Result) -> Verdict | None:
        other = result.entries.get(self.variant)
        if other is None:
            return None
        # Of rates, not of percents: the peak of the run is the same for both.
        value = 100 * result.base.gflops / other.gflops
        return Verdict(f"% of {self.variant}'s percent of peak", value, ">=", 100 - self.within)


@dataclass(frozen=True)
class LessCache:
    """So many times less memory for the cache than a variant, as allocated."""

    variant: str
    factor: float

    def judge(self, result: Result) -> Verdict | None:
        other = result.entries.get(self.variant)
        if other is None or not other.cache_bytes or not result.base.cache_bytes:
            return None
        return Verdict(
            f"times less cache than {self.variant}",
            other.cache_bytes / result.base.cache_bytes,
            ">=",
            self.factor,
        )


@dataclass(frozen=True)
class LessTime:
    """At least so many percent less time than a variant."""

    variant: str
    percent: float

    def judge(self, result: Result) -> Verdict | None:
        ratio = result.ratio(self.variant)
        if ratio is None:
            return None
        return Verdict(f"% less time than {self.variant}", 100 * (1 - 1 / ratio), ">=", self.percent)
