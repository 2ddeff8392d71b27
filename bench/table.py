"""Results as text."""

from __future__ import annotations

from bench.contenders import PEERS
from bench.row import BASE, Entry, Result

NAME_WIDTH = 50
HEADER = f"{'case':<{NAME_WIDTH}} {'thr':>3} {'isa':<11} {'time':>9} {'GFLOP/s':>8} {'% peak':>7}"
MEMORY_HEADER = f" {'GB/s':>7} {'% bandw':>7}"  # of suites about memory, behind the others


def time_text(seconds: float) -> str:
    """Three digits and a unit."""
    for factor, unit in ((1, "s"), (1e3, "ms"), (1e6, "us")):
        if seconds * factor >= 1:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds * 1e9:.3g} ns"


def percent_text(percent: float | None) -> str:
    """n/a where the unit's peak could not be measured."""
    return "n/a" if percent is None else f"{percent:.1f}"


def heading(suite: str, description: str, moves_memory: bool = False) -> str:
    """Title and column names of a suite."""
    header = HEADER + (MEMORY_HEADER if moves_memory else "")
    return f"\n{suite}: {description}\n{header}  time of others / ours"


def _figures(entry: Entry) -> str:
    work = f"{entry.gflops:>8.1f} {percent_text(entry.percent):>7}" if entry.case.flops else f"{'':>16}"
    text = f"{time_text(entry.seconds):>9} {work}"
    if entry.gb_per_s is not None:
        text += f" {entry.gb_per_s:>7.1f} {percent_text(entry.percent_of_bandwidth):>7}"
    return text


def lines_of(result: Result) -> list[str]:
    """The row, then its variants, then its bars."""
    case, base = result.row.case, result.base
    isa = result.isa + ("*" if result.row.isa else "")
    ratios = "  ".join(f"{name} {result.ratio(name):.2f}x" for name in PEERS if name in result.entries)
    lines = [f"{case.label:<{NAME_WIDTH}} {case.threads:>3} {isa:<11} {_figures(base)}  {ratios}".rstrip()]
    for name, entry in result.entries.items():
        if name == BASE or name in PEERS:
            continue
        label = f"  {name}: {entry.case.label}"
        lines.append(f"{label:<{NAME_WIDTH}} {entry.case.threads:>3} {'':<11} {_figures(entry)}")
    if result.verdicts:
        lines.append("  bars: " + "; ".join(str(verdict) for verdict in result.verdicts))
    return lines
