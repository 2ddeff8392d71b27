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
import sys
from pathlib import Path
from typing import Any

from bench import compare, environment, experts_suites, paged_suites, peer_packages, point_suites, summary
from bench.contenders import PEERS
from bench.record import DEFAULT_OUTPUT, Record
from bench.runner import Runner
from bench.suites import BACKWARD_SUITES, FORWARD_SUITES, SUITES
from bench.summary import (
    CACHE_ERROR_SUITE,
    EXPERTS_MEMORY_SUITE,
    LOSS_SUITE,
    SERVING_SUITE,
    TRAINING_SUITE,
)
from bench.table import heading, lines_of

GROUPS = {
    "attention": [*FORWARD_SUITES, "memory", "published"],
    "attention_backward": [*BACKWARD_SUITES, "backward_memory"],
    "kv_cache": list(paged_suites.SUITES),
    "moe": [*experts_suites.SUITES, EXPERTS_MEMORY_SUITE],
}
ROW_SUITES = {**SUITES, **paged_suites.SUITES, **experts_suites.SUITES}
# --threads is not for these
OWN_THREADS = ("threads", "overhead", "backward_threads", "decode", "append", *experts_suites.SUITES)
ALONE = [TRAINING_SUITE, LOSS_SUITE, SERVING_SUITE, CACHE_ERROR_SUITE]  # long ones, which run only by name
NAMES = [name for group in GROUPS.values() for name in group] + ALONE


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


def _run_rows(
    suite: str, runner: Runner, full: bool, threads: int | None, results: list[dict[str, Any]]
) -> None:
    """Appends each row to results as it is measured."""
    rows = ROW_SUITES[suite](full)
    moves_memory = any(row.case.traffic_bytes for row in rows)
    print(heading(suite, ROW_SUITES[suite].__doc__.splitlines()[0], moves_memory), flush=True)
    for row in rows:
        if threads is not None and suite not in OWN_THREADS:
            row = row.with_threads(threads)
        result = runner.measure(suite, row)
        if result is not None:
            print("\n".join(lines_of(result)), flush=True)
            results.append(result.to_json())


def run(arguments: argparse.Namespace) -> int:
    """Measures the chosen suites, prints them as they come, writes one JSON file, anew after each suite."""
    peers = [name for name in arguments.peers.split(",") if name]
    if unknown := set(peers) - set(PEERS):
        raise SystemExit(f"bench: no peer {', '.join(sorted(unknown))}; there are: {', '.join(PEERS)}")
    runner = Runner(arguments.seconds or (8.0 if arguments.full else 2.0), peers)
    report: dict[str, Any] = {"environment": environment.describe(), "full": arguments.full, "rows": []}
    report["contenders"], report["notes"] = runner.descriptions, runner.notes
    record = Record(arguments.json, report)
    if remark := environment.busy(report["environment"]):
        runner.note(remark)
    settings = point_suites.Settings(arguments.full, arguments.threads, arguments.layers, peers)
    interrupted = False
    try:
        for suite in resolve(arguments.names):
            if suite in ROW_SUITES:
                _run_rows(suite, runner, arguments.full, arguments.threads, report["rows"])
            else:
                report[suite] = {}
                point_suites.open_suite(suite, settings, runner.notes).run(report[suite])
            record.save()
    except KeyboardInterrupt:
        print("\nbench: interrupted", file=sys.stderr)
        interrupted = True
    finally:
        path = record.save()
        runner.close()
    print(f"\n{summary.shortfalls(report)}")
    if runner.notes:
        print("notes:\n  " + "\n  ".join(runner.notes))
    if path is None:
        print("bench: nothing was measured", file=sys.stderr)
    else:
        print(f"results: {path}")
    return 130 if interrupted else int(path is None)


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
