"""``tileformer bench``: hands over to the benchmark runner of the source tree."""

import argparse
import subprocess
import sys
from pathlib import Path

from tileformer.cli.errors import UsageError

_RUNNER = Path("bench", "run.py")
_MARK = Path("include", "tileformer", "attention.h")  # tells our tree from another that has a bench/run.py


def add_parser(commands) -> None:
    parser = commands.add_parser(
        "bench",
        help="paired benchmarks against the peers that are installed (from a source tree)",
        description="Runs the benchmarks of the source tree that the current folder is in.",
        add_help=False,  # the runner explains its own options
    )
    parser.set_defaults(run=run, forwards_options=True)


def run(options: argparse.Namespace) -> int:
    tree = _source_tree(Path.cwd())
    if tree is None:
        raise UsageError(
            "the benchmarks and their peers belong to the source tree, not to the installed package; "
            "clone it and run there: bash build.sh bench"
        )
    return subprocess.run([sys.executable, str(_RUNNER), *options.rest], cwd=tree, check=False).returncode


def _source_tree(start: Path) -> Path | None:
    for folder in (start, *start.parents):
        if (folder / _RUNNER).is_file() and (folder / _MARK).is_file():
            return folder
    return None
