"""Results as text."""

from __future__ import annotations

from bench.contenders import PEERS
from bench.row import BASE, Result

HEADER = f"{'case':<50} {'thr':>3} {'isa':<11} {'time':>9} {'GFLOP/s':>8} {'% peak':>7}"


def time_text(seconds: float) -> str:
    """Three digits and a unit."""
    for factor, unit in ((1, "s"), (1e3, "ms"), (1e6, "us")):
        if seconds * factor >= 1:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds * 1e9:.3g} ns"


def percent_text(percent: float | None) -> str:
    """n/a where the unit's peak could not be measured."""
    return "n/a" if percent is None else f"{percent:.1f}"


def heading(suite: str, description: str) -> str:
    """Title and column names of a suite."""
    return f"\n{suite}: {description}\n{HEADER}  time of others / ours"


def lines_of(result: Result) -> list[str]:
    """The row, then its variants, then its bars."""
    case, base = result.row.case, result.base
    isa = result.isa + ("*" if result.row.isa else "")
    figures = f"{time_text(base.seconds):>9} {base.gflops:>8.1f} {percent_text(base.percent):>7}"
    ratios = "  ".join(f"{name} {result.ratio(name):.2f}x" for name in PEERS if name in result.entries)
    lines = [f"{case.label:<50} {case.threads:>3} {isa:<11} {figures}  {ratios}"]
    for name, entry in result.entries.items():
        if name == BASE or name in PEERS:
            continue
        figures = f"{time_text(entry.seconds):>9} {entry.gflops:>8.1f} {percent_text(entry.percent):>7}"
        lines.append(f"  {name + ': ' + entry.case.label:<48} {entry.case.threads:>3} {'':<11} {figures}")
    if result.verdicts:
        lines.append("  bars: " + "; ".join(str(verdict) for verdict in result.verdicts))
    return lines
