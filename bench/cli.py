"""The command line of the benchmark.

python bench/run.py [names] [--full]        measure; names are suites or groups of them (--help lists them)
python bench/run.py compare A.json B.json   gains and losses between two runs
python bench/run.py bars RESULTS.json       every bar of a run, reached or not, as a Markdown table
python bench/run.py plot RESULTS.json       draws the figures of the README
python bench/run.py readme                  writes the tables of the README from the files that it names
python bench/run.py install-peers           unpacks the optional peers into the user's cache folder
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

from bench import compare, environment, loss_suite, memory_suite, peer_packages, summary
from bench.contenders import PEERS
from bench.runner import Runner
from bench.suites import BACKWARD_SUITES, FORWARD_SUITES, SUITES
from bench.summary import LOSS_SUITE, MEMORY_SUITES, SERVING_SUITE, TRAINING_SUITE
from bench.table import heading, lines_of

GROUPS = {
    "attention": [*FORWARD_SUITES, "memory", "published"],
    "attention_backward": [*BACKWARD_SUITES, "backward_memory"],
}
ALONE = [TRAINING_SUITE, LOSS_SUITE, SERVING_SUITE]  # long ones, which run only by name
NAMES = [name for group in GROUPS.values() for name in group] + ALONE
DEFAULT_OUTPUT = Path("build/bench")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "names",
        nargs="*",
        help=f"suites: {', '.join(NAMES)}; or {', '.join(GROUPS)}, which are several (default: these)",
    )
    parser.add_argument("--full", action="store_true", help="all rows, more rounds, 128K tokens")
    parser.add_argument("--peers", default=",".join(PEERS), help="who takes part (default %(default)s)")
    parser.add_argument("--threads", type=int, help="of rows that do not say it themselves (default 1)")
    parser.add_argument("--seconds", type=float, help="time per row (default 2, with --full 8)")
    parser.add_argument(
        "--layers",
        type=int,
        help=f"of the model of {TRAINING_SUITE} (default 2, with --full 30) and {SERVING_SUITE} (default 30)",
    )
    parser.add_argument("--json", type=Path, help=f"results (default {DEFAULT_OUTPUT}/<time>-<isa>.json)")
    return parser


def resolve(names: list[str]) -> list[str]:
    """Suites in their order; a group means all of its suites, no name means all groups. Raises SystemExit."""
    chosen = set()
    for name in names or GROUPS:
        suite = name.split(".")[-1] if name.split(".")[0] in GROUPS else name
        if name not in GROUPS and suite not in NAMES:
            raise SystemExit(f"bench: no suite {name!r}; there are: {', '.join([*GROUPS, *NAMES])}")
        chosen.update(GROUPS.get(name, [suite]))
    return [name for name in NAMES if name in chosen]


def _run_rows(suite: str, runner: Runner, full: bool, threads: int | None) -> list[dict[str, Any]]:
    print(heading(suite, SUITES[suite].__doc__.splitlines()[0]), flush=True)
    results = []
    for row in SUITES[suite](full):
        if threads is not None and suite not in ("threads", "overhead", "backward_threads"):
            row = row.with_threads(threads)
        result = runner.measure(suite, row)
        if result is not None:
            print("\n".join(lines_of(result)), flush=True)
            results.append(result.to_json())
    return results


def _run_memory(suite: str, peers: list[str], notes: list[str], full: bool) -> dict[str, Any]:
    print(f"\n{suite}: {memory_suite.__doc__}")
    suite_of = memory_suite.SUITES[suite]
    points = []
    for point in memory_suite.run(suite_of.cases(full), peers, notes):
        print(memory_suite.line_of(point), flush=True)
        points.append(point)
    verdicts = suite_of.judge(points)
    for verdict in verdicts:
        print(f"  bar: {verdict}")
    return {"points": points, "bars": [{**verdict.__dict__, "pass": verdict.passed} for verdict in verdicts]}


def _run_loss(notes: list[str], full: bool, threads: int | None) -> dict[str, Any]:
    print(f"\n{LOSS_SUITE}: {loss_suite.__doc__}")
    points = []
    for point in loss_suite.run(full, threads, notes):
        print(loss_suite.line_of(point), flush=True)
        points.append(point)
    verdicts = loss_suite.judge(points)
    for verdict in verdicts:
        print(f"  bar: {verdict}")
    return {"points": points, "bars": [{**verdict.__dict__, "pass": verdict.passed} for verdict in verdicts]}


def _run_training(notes: list[str], full: bool, layers: int | None) -> dict[str, Any]:
    from bench import training_suite  # transformers is needed for nothing else

    print(f"\n{TRAINING_SUITE}: {training_suite.__doc__}")
    points, verdicts = [], []
    for group in training_suite.run(training_suite.cases(full, layers, DEFAULT_OUTPUT), notes):
        print("\n".join(training_suite.lines_of(group)), flush=True)
        points += group
        verdicts += training_suite.judge(group)
    for verdict in verdicts:
        print(f"  bar: {verdict}")
    return {"points": points, "bars": [{**verdict.__dict__, "pass": verdict.passed} for verdict in verdicts]}


def _run_serving(notes: list[str], full: bool, layers: int | None, threads: int | None) -> dict[str, Any]:
    from bench import serving_suite  # transformers is needed for nothing else

    print(f"\n{SERVING_SUITE}: {serving_suite.__doc__}")
    points, verdicts = [], []
    for group in serving_suite.run(serving_suite.cases(full, layers), threads, notes):
        print("\n".join(serving_suite.lines_of(group)), flush=True)
        points += group
        verdicts += serving_suite.judge(group)
    for verdict in verdicts:
        print(f"  bar: {verdict}")
    return {"points": points, "bars": [{**verdict.__dict__, "pass": verdict.passed} for verdict in verdicts]}


def run(arguments: argparse.Namespace) -> int:
    """Measures the chosen suites, prints them as they come, and writes one JSON file."""
    peers = [name for name in arguments.peers.split(",") if name]
    if unknown := set(peers) - set(PEERS):
        raise SystemExit(f"bench: no peer {', '.join(sorted(unknown))}; there are: {', '.join(PEERS)}")
    runner = Runner(arguments.seconds or (8.0 if arguments.full else 2.0), peers)
    report: dict[str, Any] = {"environment": environment.describe(), "full": arguments.full, "rows": []}
    if remark := environment.busy(report["environment"]):
        runner.note(remark)
    try:
        for suite in resolve(arguments.names):
            if suite == LOSS_SUITE:
                report[suite] = _run_loss(runner.notes, arguments.full, arguments.threads)
            elif suite == TRAINING_SUITE:
                report[suite] = _run_training(runner.notes, arguments.full, arguments.layers)
            elif suite == SERVING_SUITE:
                report[suite] = _run_serving(
                    runner.notes, arguments.full, arguments.layers, arguments.threads
                )
            elif suite in MEMORY_SUITES:
                report[suite] = _run_memory(suite, peers, runner.notes, arguments.full)
            else:
                report["rows"] += _run_rows(suite, runner, arguments.full, arguments.threads)
    finally:
        runner.close()
    report["contenders"], report["notes"] = runner.descriptions, runner.notes
    print(f"\n{summary.shortfalls(report)}")
    if runner.notes:
        print("notes:\n  " + "\n  ".join(runner.notes))
    suites = (*MEMORY_SUITES, TRAINING_SUITE, LOSS_SUITE, SERVING_SUITE)
    points = [point for suite in suites for point in report.get(suite, {}).get("points", [])]
    measured = report["rows"] or points
    if not measured:
        print("bench: nothing was measured", file=sys.stderr)
        return 1
    path = arguments.json or DEFAULT_OUTPUT / f"{time.strftime('%Y%m%d-%H%M%S')}-{measured[0]['isa']}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(report, indent=1) + "\n")
    print(f"results: {path}")
    return 0


def main(argv: list[str] | None = None) -> int:
    """Returns the exit code: 0 when something was measured, whether or not every bar was reached."""
    argv = sys.argv[1:] if argv is None else argv
    match argv[:1]:
        case ["compare"]:
            return compare.main(argv[1:])
        case ["bars"]:
            return summary.main(argv[1:])
        case ["plot"]:
            from bench import plots  # matplotlib is needed for nothing else

            return plots.main(argv[1:])
        case ["readme"]:
            from bench import readme

            return readme.main(argv[1:])
        case ["install-peers"]:
            return peer_packages.install()
        case _:
            return run(_parser().parse_args(argv))
