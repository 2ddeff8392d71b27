"""``tileformer info``: what runs here, and on what."""

from __future__ import annotations

import argparse
import importlib.util
import os
import platform
from pathlib import Path

from tileformer.cli.errors import UsageError
from tileformer.cli.progress import step
from tileformer.models.conversion_cache import cache_folder


def add_parser(commands) -> None:
    parser = commands.add_parser(
        "info",
        help="version, instruction sets, CPU, caches, and which integrations are active",
        description="Prints what this installation of tileformer is and what it runs on.",
    )
    parser.set_defaults(run=run, forwards_options=False)


def run(options: argparse.Namespace) -> int:
    from tileformer.config import config

    with step("loading libraries"):
        attention = _transformers_attention()
        try:
            facts = config()
        except ValueError as error:  # TILEFORMER_ISA names what is not here
            raise UsageError(str(error)) from error
    models = cache_folder() / "models"
    facts |= {
        "transformers attn": attention,
        "cpu": f"{_cpu_name()}, {len(os.sched_getaffinity(0))} usable",
        "caches": _caches(),
        "converted models": f"{models} ({_size_mib(models)} MiB)",
    }
    for name, value in facts.items():
        print(f"{name:17} {value}")
    return 0


def _transformers_attention() -> str:
    if importlib.util.find_spec("transformers") is None:
        return "transformers is not installed"
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    active = "tileformer" in ALL_ATTENTION_FUNCTIONS.valid_keys()
    return 'attn_implementation="tileformer" is registered' if active else "tileformer is not registered"


def _cpu_name() -> str:
    for line in _read(Path("/proc/cpuinfo")).splitlines():
        if line.startswith(("model name", "Processor")):
            return line.partition(":")[2].strip()
    return platform.machine()


def _caches() -> str:
    """As the first CPU sees them: "L1 data 32K, L1 instruction 32K, L2 512K, L3 32M"."""
    found = []
    for index in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        level, kind, size = (_read(index / name).strip() for name in ("level", "type", "size"))
        found.append(f"L{level} {size}" if kind == "Unified" else f"L{level} {kind.lower()} {size}")
    return ", ".join(found) or "not told by this system"


def _size_mib(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) >> 20


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
