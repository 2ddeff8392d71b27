"""The command line: ``tileformer generate | serve-bench | train | bench | info``."""

import argparse
import os
import sys
from collections.abc import Sequence

from tileformer.cli import bench, generate, info, serve_bench, train
from tileformer.cli.errors import BAD_INPUT, INTERRUPTED, STOPPED, UsageError
from tileformer.models.errors import ModelError
from tileformer.training.errors import TrainingError, TrainingStopped


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command. Returns its exit code: 0, 2 for bad input (message on stderr), 130 after
    Ctrl-C, 1 if it had to stop on the way.
    """
    parser = argparse.ArgumentParser(
        prog="tileformer",
        description="Transformer operators for CPUs. Run a command with --help for its options.",
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="command")
    for command in (generate, serve_bench, train, bench, info):
        command.add_parser(commands)
    options, rest = parser.parse_known_args(arguments)
    if rest and not options.forwards_options:
        parser.error(f"{options.command} does not take {' '.join(rest)}")
    options.rest = rest
    try:
        return options.run(options)
    except (ModelError, TrainingError, UsageError) as error:
        print(f"tileformer {options.command}: error: {error}", file=sys.stderr)
        return STOPPED if isinstance(error, TrainingStopped) else BAD_INPUT
    except KeyboardInterrupt:
        print(f"tileformer {options.command}: interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        # The reader of stdout has gone (| head). Python flushes stdout once more at exit: send that nowhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
