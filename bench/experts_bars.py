"""The figures that routing has to reach; those of the layer are the ones of other suites."""

from __future__ import annotations

from dataclasses import dataclass

from bench.row import Result, Verdict


@dataclass(frozen=True)
class ShareOfLayer:
    """At most so many percent of the time that it and a variant, the layer's experts, take together."""

    variant: str
    percent: float

    def judge(self, result: Result) -> Verdict | None:
        ratio = result.ratio(self.variant)
        if ratio is None:
            return None
        return Verdict(f"% of the time with {self.variant}", 100 / (1 + ratio), "<=", self.percent)


@dataclass(frozen=True)
class CostPerToken:
    """A variant with more tokens takes at most so many times as long for each."""

    variant: str
    factor: float

    def judge(self, result: Result) -> Verdict | None:
        other = result.entries.get(self.variant)
        if other is None:
            return None
        growth = (other.seconds / other.case.tokens) / (result.base.seconds / result.base.case.tokens)
        return Verdict(f"times the cost of a token in {self.variant}", growth, "<=", self.factor)
