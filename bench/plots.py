"""The figures of the README, drawn from the JSON of a run."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure

from bench.case import AttentionCase
from bench.contenders import MODULES
from bench.experts_case import ExpertsCase
from bench.paged_case import PagedCase
from bench.paged_suites import decode_case
from bench.readme import machine_line

# Torch has the same colours in the figures of attention and of experts.
COLORS = dict(
    zip(
        MODULES,
        ("#0b6e4f", "#e07a2f", "#b9b2a6", "#7a5ea8", "#3d7cc9", "#c2416b", "#e07a2f", "#b9b2a6"),
        strict=True,
    )
)
FOLDER = Path(__file__).resolve().parent.parent / "docs" / "images"


def _style() -> None:
    matplotlib.rcParams.update(
        {
            "font.size": 9,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "svg.hashsalt": "tileformer",  # the same results give the same bytes
            "svg.fonttype": "none",
        }
    )


def speed(report: dict[str, Any]) -> Figure:
    """GFLOP/s of every contender in the main rows, a panel per dtype, with the peak of the unit as a line."""
    rows = [row for row in report["rows"] if row["suite"] == "main"]
    dtypes = list(dict.fromkeys(row["entries"]["tileformer"]["case"]["dtype"] for row in rows))
    figure = Figure(figsize=(3.8 * len(dtypes), 4.2))
    axes = figure.subplots(1, len(dtypes), sharex=True, squeeze=False)
    for dtype, axis in zip(dtypes, axes[0]):
        chosen = [row for row in rows if row["entries"]["tileformer"]["case"]["dtype"] == dtype]
        names = [name for name in MODULES if any(name in row["entries"] for row in chosen)]
        height = 0.8 / len(names)
        for place, name in enumerate(names):
            at = [i + place * height for i, row in enumerate(chosen) if name in row["entries"]]
            values = [row["entries"][name]["gflops"] for row in chosen if name in row["entries"]]
            axis.barh(at, values, height, color=COLORS[name], label=name)
        peaks = [row["peak_gflops"] for row in chosen if row["peak_gflops"]]
        if peaks:
            axis.axvline(max(peaks), color="black", linestyle=":", linewidth=1, label="peak of the unit")
        labels = [row["label"].replace(f" {dtype}", "") for row in chosen]
        axis.set_yticks([i + 0.4 - height / 2 for i in range(len(chosen))], labels)
        axis.invert_yaxis()
        axis.set_title(dtype)
        axis.set_xlabel("GFLOP/s, one thread")
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="lower center", ncols=len(labels), frameon=False)
    figure.suptitle(
        f"Attention forward, batch x heads x sequence x head_dim\n{machine_line(report)}", fontsize=9
    )
    figure.tight_layout(rect=(0, 0.06, 1, 1))
    return figure


def memory(report: dict[str, Any]) -> Figure:
    """Memory beyond inputs and output, and time, over the sequence length."""
    points = report["memory"]["points"]
    figure = Figure(figsize=(9, 3.6))
    space, clock = figure.subplots(1, 2)
    for name in dict.fromkeys(point["contender"] for point in points):
        own = [point for point in points if point["contender"] == name]
        lengths = [point["case"]["seq"] for point in own]
        # A logarithmic axis has no zero: nothing measurable is drawn as one page.
        mib = [max(point["extra_bytes"], 4096) / 2**20 for point in own]
        space.loglog(lengths, mib, marker="o", color=COLORS[name], label=name)
        clock.loglog(lengths, [point["seconds"] for point in own], marker="o", color=COLORS[name], label=name)
    for axis, title in ((space, "MiB beyond inputs and output"), (clock, "seconds")):
        ticks = sorted({point["case"]["seq"] for point in points})
        axis.set_xticks(ticks, [f"{tick // 1024}K" for tick in ticks])
        axis.minorticks_off()
        axis.set_xlabel("tokens")
        axis.set_title(title)
        axis.grid(alpha=0.3)
    space.legend(frameon=False)
    case = AttentionCase(**points[0]["case"])
    shape = f"{case.heads} query heads, {case.kv_heads} kv heads, head_dim {case.dim}, {case.dtype}, causal"
    figure.suptitle(f"{shape}, {case.threads} threads\n{machine_line(report)}", fontsize=9)
    figure.tight_layout()
    return figure


def decode(report: dict[str, Any]) -> Figure:
    """GB/s over the query heads of a kv head, bf16, a panel per head_dim, the read bandwidth as a line."""
    rows = _decode_rows(report)
    of_dim = [case.dim for case, _ in rows]
    most = max(map(of_dim.count, of_dim))
    # A dimension with a row or two of a short run would be a panel of a few dots.
    dims = sorted({dim for dim in of_dim if of_dim.count(dim) == most}, reverse=True)
    figure = Figure(figsize=(4.6 * len(dims), 3.8))
    axes = figure.subplots(1, len(dims), sharey=True, squeeze=False)
    for dim, axis in zip(dims, axes[0]):
        chosen = sorted(
            ((case.heads // case.kv_heads, row) for case, row in rows if case.dim == dim),
            key=lambda pair: pair[0],
        )
        for name in MODULES:
            own = [(group, row["entries"][name]) for group, row in chosen if name in row["entries"]]
            if own:
                rates = [entry["gb_per_s"] for _, entry in own]
                axis.plot([group for group, _ in own], rates, marker="o", color=COLORS[name], label=name)
        limits = [(group, row["bandwidth_gb_per_s"]) for group, row in chosen if row["bandwidth_gb_per_s"]]
        axis.plot(*zip(*limits), color="black", linestyle=":", linewidth=1, label="read bandwidth")
        groups = [group for group, _ in chosen]
        axis.set_xscale("log", base=2)
        axis.set_xticks(groups, [str(group) for group in groups])
        axis.minorticks_off()
        axis.set_ylim(bottom=0)
        axis.set_xlabel("query heads on a kv head")
        axis.set_title(f"head_dim {dim}")
        axis.grid(alpha=0.3)
    axes[0][0].set_ylabel("GB/s of keys and values, one thread")
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="lower center", ncols=len(labels), frameon=False)
    figure.suptitle(f"Decode over pages, bf16\n{machine_line(report)}", fontsize=9)
    figure.tight_layout(rect=(0, 0.08, 1, 1))
    return figure


def _decode_rows(report: dict[str, Any]) -> list[tuple[PagedCase, dict[str, Any]]]:
    rows = [row for row in report["rows"] if row["suite"] == "decode"]
    cases = [PagedCase(**row["entries"]["tileformer"]["case"]) for row in rows]
    return [(case, row) for case, row in zip(cases, rows) if is_of_decode_figure(case)]


def is_of_decode_figure(case: PagedCase) -> bool:
    """The rows that differ in nothing but head_dim and group."""
    return case == decode_case(case.dim, case.heads // case.kv_heads)


def moe(report: dict[str, Any]) -> Figure:
    """GFLOP/s over the tokens, bf16, forward, a panel per layer; what bandwidth and peak allow as a line."""
    panels: dict[ExpertsCase, list[tuple[int, dict[str, Any]]]] = {}
    for case, row in _moe_rows(report):
        panels.setdefault(case.with_(tokens=1), []).append((case.tokens, row))
    figure = Figure(figsize=(4.2 * len(panels), 3.8))
    axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)
    for (case, found), axis in zip(panels.items(), axes[0]):
        points = sorted(found, key=lambda point: point[0])
        for name in MODULES:
            own = [(tokens, row["entries"][name]) for tokens, row in points if name in row["entries"]]
            if own:
                rates = [entry["gflops"] for _, entry in own]
                axis.loglog([tokens for tokens, _ in own], rates, marker="o", color=COLORS[name], label=name)
        limits = [(tokens, limit) for tokens, row in points if (limit := _limit(row)) is not None]
        axis.loglog(*zip(*limits), color="black", linestyle=":", linewidth=1, label="bandwidth, then peak")
        ticks = [tokens for tokens, _ in points]
        axis.set_xticks(ticks, [str(tick) for tick in ticks])
        axis.minorticks_off()
        axis.set_xlabel("tokens")
        axis.set_title(f"hidden {case.hidden}, inter {case.inter}, {case.top_k} of {case.experts}")
        axis.grid(alpha=0.3)
    axes[0][0].set_ylabel("GFLOP/s, one thread")
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="lower center", ncols=len(labels), frameon=False)
    figure.suptitle(f"Mixture of experts, bf16\n{machine_line(report)}", fontsize=9)
    figure.tight_layout(rect=(0, 0.08, 1, 1))
    return figure


def _limit(row: dict[str, Any]) -> float | None:
    """GFLOP/s that the unit's peak and, with few tokens, one read of the weights allow."""
    own = row["entries"]["tileformer"]
    percents = [own[key] for key in ("percent_of_peak", "percent_of_bandwidth") if own[key]]
    return 100 * own["gflops"] / max(percents) if percents else None


def _moe_rows(report: dict[str, Any]) -> list[tuple[ExpertsCase, dict[str, Any]]]:
    """Forward, bf16, one thread: they differ in nothing but the layer and the tokens."""
    rows = [row for row in report["rows"] if row["suite"] in ("moe_few", "moe_many")]
    cases = [ExpertsCase(**row["entries"]["tileformer"]["case"]) for row in rows]
    return [(case, row) for case, row in zip(cases, rows) if (case.dtype, case.threads) == ("bf16", 1)]


def main(argv: list[str]) -> int:
    """Writes attention-speed.svg, attention-memory.svg, decode-bandwidth.svg and moe-speed.svg, as far as the
    run has their suites.
    """
    parser = argparse.ArgumentParser(prog="bench plot", description=__doc__)
    parser.add_argument("results", type=Path)
    parser.add_argument("--out", type=Path, default=FOLDER, help="folder (default docs/images)")
    arguments = parser.parse_args(argv)
    report = json.loads(arguments.results.read_text())
    arguments.out.mkdir(parents=True, exist_ok=True)
    _style()
    drawn = 0
    for name, figure, present in (
        ("attention-speed", speed, any(row["suite"] == "main" for row in report["rows"])),
        ("attention-memory", memory, bool(report.get("memory", {}).get("points"))),
        ("decode-bandwidth", decode, bool(_decode_rows(report))),
        ("moe-speed", moe, bool(_moe_rows(report))),
    ):
        if present:
            path = arguments.out / f"{name}.svg"
            figure(report).savefig(path, metadata={"Date": None})
            print(path)
            drawn += 1
    return 0 if drawn else 1
