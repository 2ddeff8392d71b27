"""The figures in README.md: blocks between markers, written from the JSON files that the markers name.

<!-- bench:speed bench/results/x.json -->
...
<!-- /bench -->
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.contenders import PEERS
from bench.environment import busy
from bench.experts_case import ExpertsCase
from bench.row import BASE
from bench.table import percent_text, time_text

ROOT = Path(__file__).resolve().parent.parent
BLOCK = re.compile(r"(<!-- bench:(\w+) (\S+) -->\n).*?(<!-- /bench -->)", re.DOTALL)
MIB = 1 << 20


def machine_line(report: dict[str, Any]) -> str:
    """CPU, ISA, versions and day of a run."""
    environment = report["environment"]
    ids = environment["cpu_ids"]
    family = f" (family {ids['cpu family']}, model {ids['model']})" if "cpu family" in ids else ""
    own = report["contenders"].get(BASE, {})
    peers = [f"{name} {report['contenders'][name]['version']}" for name in ("zentorch", "vllm")
             if name in report["contenders"]]  # fmt: skip
    words = [
        environment["cpu"] + family,
        own.get("isa", ""),
        f"torch {environment['versions']['torch']}",
        *peers,
    ]
    return ", ".join([*words, environment["date"][:10], *filter(None, [busy(environment)])])


def _table(header: list[str], lines: list[list[str]]) -> str:
    rule = ["---"] + ["--:"] * (len(header) - 1)
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (header, rule, *lines))


def speed(report: dict[str, Any]) -> str:
    """The main rows: time, GFLOP/s, percent of peak, and how many times faster than each peer."""
    rows = [row for row in report["rows"] if row["suite"] == "main"]
    peers = [name for name in PEERS if any(name in row["entries"] for row in rows)]
    lines = []
    for row in rows:
        own = row["entries"][BASE]
        ratios = [f"{row['entries'][p]['ratio']:.2f}x" if p in row["entries"] else "" for p in peers]
        figures = [time_text(own["seconds"]), f"{own['gflops']:.1f}", percent_text(own["percent_of_peak"])]
        lines.append([row["label"], *figures, *ratios])
    header = ["batch x heads x seq x dim", "time", "GFLOP/s", "% of peak", *(f"vs {name}" for name in peers)]
    return _table(header, lines)


def backward(report: dict[str, Any]) -> str:
    """The rows of the backward, beside torch's fused and unfused ones."""
    rows = [row for row in report["rows"] if row["suite"] == "backward"]
    lines = []
    for row in rows:
        own = row["entries"][BASE]
        ratios = [
            f"{row['entries'][p]['ratio']:.2f}x" if p in row["entries"] else ""
            for p in ("torch-flash", "torch-math")
        ]
        figures = [time_text(own["seconds"]), f"{own['gflops']:.1f}", percent_text(own["percent_of_peak"])]
        lines.append([row["label"].replace(" backward", ""), *figures, *ratios])
    header = ["gradients of", "time", "GFLOP/s", "% of peak", "vs torch-flash", "vs torch-math"]
    return _table(header, lines)


def decode(report: dict[str, Any]) -> str:
    """The rows of decode: GB/s of keys and values, percents of bandwidth and of peak, and each peer."""
    rows = [row for row in report["rows"] if row["suite"] == "decode"]
    peers = [name for name in PEERS if any(name in row["entries"] for row in rows)]
    lines = []
    for row in rows:
        own = row["entries"][BASE]
        ratios = [f"{row['entries'][p]['ratio']:.2f}x" if p in row["entries"] else "" for p in peers]
        percents = [percent_text(own[key]) for key in ("percent_of_bandwidth", "percent_of_peak")]
        label = row["label"].replace(" decode", "")
        lines.append([label, str(row["threads"]), f"{own['gb_per_s']:.1f}", *percents, *ratios])
    beside = [f"vs {name}" for name in peers]
    header = [
        "batch x heads/kv heads x keys x dim",
        "threads",
        "GB/s",
        "% of bandwidth",
        "% of peak",
        *beside,
    ]
    return _table(header, lines)


def _ratios(row: dict[str, Any], peers: list[str]) -> list[str]:
    return [f"{row['entries'][peer]['ratio']:.2f}x" if peer in row["entries"] else "" for peer in peers]


def moe(report: dict[str, Any]) -> str:
    """The layer, forward and backward: GFLOP/s, GB/s of weights, percents of both limits, and each peer."""
    suites = ("moe_few", "moe_many", "moe_backward")
    rows = [row for suite in suites for row in report["rows"] if row["suite"] == suite]
    peers = [name for name in PEERS if any(name in row["entries"] for row in rows)]
    lines = []
    for row in rows:
        own = row["entries"][BASE]
        is_few = own["gb_per_s"] is not None
        moved = [f"{own['gb_per_s']:.1f}", percent_text(own["percent_of_bandwidth"])] if is_few else ["", ""]
        figures = [f"{own['gflops']:.1f}", percent_text(own["percent_of_peak"]), *moved]
        lines.append([row["label"], str(row["threads"]), *figures, *_ratios(row, peers)])
    header = ["tokens x hidden x inter, top k / experts", "threads", "GFLOP/s", "% of peak"]
    header += ["GB/s", "% of bandwidth", *(f"vs {name}" for name in peers)]
    return _table(header, lines)


def moe_quantized(report: dict[str, Any]) -> str:
    """int8 and int4 weights: how many times faster than bf16 ones, and the error of both."""
    lines = []
    for row in (row for row in report["rows"] if row["suite"] == "moe_quantized"):
        own, plain = row["entries"][BASE], row["entries"]["bf16"]
        errors = [f"{100 * entry['relative_error']:.2g} %" for entry in (own, plain)]
        lines.append([row["label"], f"{plain['ratio']:.2f}x", *errors])
    header = ["tokens x hidden x inter, top k / experts", "vs bf16 weights", "error", "of bf16"]
    return _table(header, lines)


def moe_memory(report: dict[str, Any]) -> str:
    """A training step of the experts: memory beyond tensors and gradients, and time."""
    lines = []
    for point in report["moe_memory"]["points"]:
        label = ExpertsCase(**point["case"]).label
        figures = [f"{point['extra_bytes'] / MIB:.0f} MiB", f"{point['tensor_bytes'] / MIB:.0f} MiB"]
        lines.append([f"{label}, {point['contender']}", *figures, time_text(point["seconds"])])
    return _table(["", "memory of the step", "tensors and gradients", "time"], lines)


def training(report: dict[str, Any]) -> str:
    """Tokens/s and peak resident memory of training steps, and both relative to sdpa."""
    points = [point for point in report["training"]["points"] if not point["failure"]]
    lines = []
    for point in points:
        settings = point["settings"]
        peer = next(
            p
            for p in points
            if p["contender"] == "sdpa" and p["settings"]["sequence_length"] == settings["sequence_length"]
        )
        speed, memory = (point[key] / peer[key] for key in ("tokens_per_second", "peak_rss_mib"))
        figures = [f"{point['tokens_per_second']:.0f}", f"{point['peak_rss_mib']:.0f} MiB"]
        shape = f"{settings['sequence_length']} tokens, {settings['layers']} layers, {settings['dtype']}"
        lines.append([f"{shape}, {point['contender']}", *figures, f"{speed:.2f}x", f"{memory:.2f}x"])
    return _table(["step", "tokens/s", "peak memory", "sdpa's speed", "sdpa's memory"], lines)


def features(report: dict[str, Any]) -> str:
    """What each option costs per useful operation, beside the same call without it."""
    lines = []
    for row in report["rows"]:
        for bar in row["bars"]:
            if row["suite"] in ("mask", "features", "window") and bar["what"].startswith("cost beside"):
                beside = bar["what"].removeprefix("cost beside ")
                lines.append([row["label"], beside, f"{bar['value']:.2f}", f"{bar['bar']:g}"])
    return _table(["call", "beside", "cost per operation", "allowed"], lines)


def published(report: dict[str, Any]) -> str:
    """Memory and time against unfused attention."""
    lines = []
    for point in report["published"]["points"]:
        total = (point["extra_bytes"] + point["tensor_bytes"]) / MIB
        extra = point["extra_bytes"] / MIB
        lines.append(
            [point["contender"], f"{total:.0f} MiB", f"{extra:.1f} MiB", time_text(point["seconds"])]
        )
    bars = "; ".join(f"{bar['value']:.0f} {bar['what']}" for bar in report["published"]["bars"])
    header = ["", "memory", "of it beyond inputs and output", "time"]
    return _table(header, lines) + (f"\n\n{bars}." if bars else "")


def machine(report: dict[str, Any]) -> str:
    """Where the figures come from."""
    return f"{machine_line(report)}."


BLOCKS: dict[str, Callable[[dict[str, Any]], str]] = {
    "speed": speed,
    "backward": backward,
    "decode": decode,
    "moe": moe,
    "moe_quantized": moe_quantized,
    "moe_memory": moe_memory,
    "training": training,
    "features": features,
    "published": published,
    "machine": machine,
}


def render(text: str, root: Path = ROOT) -> str:
    """The text with every block written anew. Raises KeyError on a block that is unknown."""

    def block(match: re.Match[str]) -> str:
        report = json.loads((root / match[3]).read_text())
        return f"{match[1]}{BLOCKS[match[2]](report)}\n{match[4]}"

    return BLOCK.sub(block, text)


def main(argv: list[str]) -> int:
    """Writes README.md; with --check only says whether it is up to date."""
    parser = argparse.ArgumentParser(prog="bench readme", description=__doc__.splitlines()[0])
    parser.add_argument(
        "--check", action="store_true", help="write nothing; exit code 1 if README.md is stale"
    )
    arguments = parser.parse_args(argv)
    path = ROOT / "README.md"
    before = path.read_text()
    after = render(before)
    if arguments.check:
        print(
            "README.md is up to date" if after == before else "README.md is stale: python bench/run.py readme"
        )
        return int(after != before)
    path.write_text(after)
    print(path)
    return 0
