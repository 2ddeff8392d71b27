"""All bars of a run in one place."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

MEMORY_SUITES = ("memory", "published", "backward_memory")
TRAINING_SUITE = "training"
LOSS_SUITE = "linear_cross_entropy"
SERVING_SUITE = "serving"
CACHE_ERROR_SUITE = "cache_error"
EXPERTS_MEMORY_SUITE = "moe_memory"
POINT_SUITES = (
    *MEMORY_SUITES,
    TRAINING_SUITE,
    LOSS_SUITE,
    SERVING_SUITE,
    CACHE_ERROR_SUITE,
    EXPERTS_MEMORY_SUITE,
)  # those that measure points, not rows


def bars_of(report: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """(row, bar) in the order of measuring, without those that could not be judged."""
    for row in report["rows"]:
        for bar in row["bars"]:
            yield f"{row['suite']}: {row['label']}, {row['threads']} thr, {row['isa']}", bar
    for suite in POINT_SUITES:
        for bar in report.get(suite, {}).get("bars", []):
            yield suite, bar


def bar_text(bar: dict[str, Any]) -> str:
    """What, value, and the bar, without the outcome."""
    return f"{bar['what']} {bar['value']:.3g} {bar['relation']} {bar['bar']:g}"


def shortfalls(report: dict[str, Any]) -> str:
    """How many bars were reached, and those that were not."""
    bars = list(bars_of(report))
    short = [f"  {name}: {bar_text(bar)}" for name, bar in bars if not bar["pass"]]
    return "\n".join([f"bars: {len(bars) - len(short)} of {len(bars)} reached", *short])


def main(argv: list[str]) -> int:
    """Prints every bar of a results file as a Markdown table. Exit code 1 if one was not reached."""
    parser = argparse.ArgumentParser(prog="bench bars", description=main.__doc__)
    parser.add_argument("results", type=Path)
    report = json.loads(parser.parse_args(argv).results.read_text())
    print("| row | measured | bar | |\n|---|--:|--:|---|")
    for name, bar in bars_of(report):
        outcome = "reached" if bar["pass"] else "**short**"
        print(f"| {name} | {bar['value']:.3g} {bar['what']} | {bar['relation']} {bar['bar']:g} | {outcome} |")
    return 0 if all(bar["pass"] for _, bar in bars_of(report)) else 1
