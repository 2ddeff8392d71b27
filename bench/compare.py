"""Gains and losses between two runs, by percent of what the machine reached: bare times are noise."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# Best-of-several percents of one build differ by about this much from run to run on a shared machine.
NOISE = 0.03
PERCENTS = {"percent of bandwidth": "percent_of_bandwidth", "percent of peak": "percent_of_peak"}
KINDS = (*PERCENTS, "ratio to torch-flash")  # the first that both runs have counts; ratios need no yardstick


def _key(row: dict[str, Any]) -> tuple:
    return row["suite"], row["label"], row["threads"], row["isa"], row["forced_isa"]


def measure_of(row: dict[str, Any], kind: str) -> float | None:
    """Higher is better. None where the row has no such figure."""
    if kind in PERCENTS:
        return row["entries"]["tileformer"].get(PERCENTS[kind])
    return row["entries"].get("torch-flash", {}).get("ratio")


def differences(before: dict[str, Any], after: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Rows that both runs have, with the relative change (positive: a gain) of a measure that both have."""
    old = {_key(row): row for row in before["rows"]}
    for row in after["rows"]:
        other = old.get(_key(row))
        if other is None:
            continue
        for kind in KINDS:
            a, b = measure_of(other, kind), measure_of(row, kind)
            if a and b:
                yield {"row": row, "kind": kind, "before": a, "after": b, "change": b / a - 1}
                break


def main(argv: list[str]) -> int:
    """Prints every row that both runs have, losses first. Exit code 1 if a row lost more than --threshold."""
    parser = argparse.ArgumentParser(prog="bench compare", description=__doc__)
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("--threshold", type=float, default=NOISE, help="noise (default %(default)s)")
    arguments = parser.parse_args(argv)
    reports = [json.loads(path.read_text()) for path in (arguments.before, arguments.after)]
    machines = [report["environment"]["cpu"] for report in reports]
    if machines[0] != machines[1]:
        print(f"note: different CPUs: {machines[0]} / {machines[1]}")
    found = sorted(differences(*reports), key=lambda d: d["change"])
    if not found:
        print("the two runs have no row in common")
        return 1
    for d in found:
        word = "same" if abs(d["change"]) < arguments.threshold else "LOSS" if d["change"] < 0 else "gain"
        name = f"{d['row']['suite']}: {d['row']['label']} ({d['row']['threads']} thr, {d['row']['isa']})"
        figures = f"{d['before']:8.2f} -> {d['after']:8.2f}"
        print(f"{word}  {100 * d['change']:+6.1f} %  {figures}  {d['kind']}  {name}")
    losses = sum(d["change"] <= -arguments.threshold for d in found)
    gains = sum(d["change"] >= arguments.threshold for d in found)
    print(f"{gains} gains, {losses} losses, {len(found) - gains - losses} within {arguments.threshold:.0%}")
    return 1 if losses else 0
