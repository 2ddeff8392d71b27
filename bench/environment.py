"""The machine and the software of a run, for its JSON file."""

from __future__ import annotations

import datetime
import importlib.metadata
import os
import platform
import re
import subprocess
from pathlib import Path
from typing import Any


def _cpu_name() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith(("model name", "Model", "Processor")):
            return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def _cpu_ids() -> dict[str, str]:
    """family, model and stepping, since virtual machines hide the name."""
    wanted = ("cpu family", "model", "stepping", "CPU implementer", "CPU part")
    found = {}
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        field, _, value = line.partition(":")
        if field.strip() in wanted:
            found.setdefault(field.strip(), value.strip())
    return found


def _caches() -> dict[str, str]:
    caches = {}
    for index in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        level, kind, size = ((index / name).read_text().strip() for name in ("level", "type", "size"))
        caches[f"L{level} {kind}"] = size
    return caches


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _revision() -> str | None:
    """The commit of the tree that the bench runs from, with '+' if it has changes."""
    root = Path(__file__).resolve().parent.parent
    command = ["git", "-C", str(root), "describe", "--always", "--dirty=+", "--abbrev=12"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def _tileformer() -> dict[str, str]:
    """What the installed package says of itself, and the compilers that its library names (ELF .comment)."""
    try:
        from tileformer import _C
        from tileformer.config import config
    except ImportError:
        return {}
    named = re.findall(rb"GCC: \([^)]*\) [\d.]+|clang version [\d.]+", Path(_C.__file__).read_bytes())
    return {**config(), "compilers": ", ".join(sorted({name.decode() for name in named}))}


def busy(environment: dict[str, Any]) -> str | None:
    """A remark if other work was running when the run began: its figures are then not worth much."""
    load, cores = environment["load_average"], environment["cores"]
    return f"busy machine (load {load:.1f} on {cores} cores)" if load > cores / 4 else None


def describe() -> dict[str, Any]:
    """CPU, caches, load, kernel, compiler, date and versions."""
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "cpu": _cpu_name(),
        "cpu_ids": _cpu_ids(),
        "cores": len(os.sched_getaffinity(0)),
        "load_average": os.getloadavg()[0],
        "caches": _caches(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": platform.python_version(),
        "revision": _revision(),
        "tileformer": _tileformer(),
        "versions": {name: _version(name) for name in ("torch", "numpy")},
    }
