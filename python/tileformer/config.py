"""What this build is and what it runs on."""

from __future__ import annotations

import os
import platform
import sys

import torch

from tileformer import _C


def isa() -> str:
    """The instruction set in force: the best that this machine grants, or the one that TILEFORMER_ISA names.

    Raises ValueError if TILEFORMER_ISA names one that is unknown or not supported here; the message lists
    what is.
    """
    return _C.isa()


def config() -> dict[str, str]:
    """Everything that show_config() prints."""
    transformers = sys.modules.get("transformers")
    counts = _C.sdpa_counts()
    return {
        "tileformer": _C.__version__,
        "isa": _C.isa(),
        "supported isas": ", ".join(_C.supported_isas()),
        "compiled isas": ", ".join(_C.compiled_isas()),
        "TILEFORMER_ISA": os.environ.get("TILEFORMER_ISA", "not set"),
        "machine": platform.machine(),
        "threads": f"{torch.get_num_threads()} (torch.set_num_threads)",
        "torch": torch.__version__,
        "transformers": getattr(transformers, "__version__", "not imported"),
        "torch sdpa": "carried out by tileformer" if _C.sdpa_override() else "torch's own",
        "torch sdpa calls": ", ".join(f"{where} {count}" for where, count in counts.items()),
    }


def show_config() -> None:
    """Prints version, instruction sets, threads, and which integrations are active."""
    for name, value in config().items():
        print(f"{name:17} {value}")
