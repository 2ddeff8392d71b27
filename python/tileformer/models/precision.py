"""The dtype of a model's weights and activations on this CPU."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

# What --dtype takes -> torch's name.
DTYPE_NAMES = {
    "float32": "float32",
    "fp32": "float32",
    "bfloat16": "bfloat16",
    "bf16": "bfloat16",
    "float16": "float16",
    "fp16": "float16",
}


def resolve_dtype(name: str) -> tuple[torch.dtype, str]:
    """Returns the dtype for a key of DTYPE_NAMES or "auto", and for "auto" the reason in a few words."""
    import torch

    if name != "auto":
        return getattr(torch, DTYPE_NAMES[name]), ""
    if _multiplies_bf16():
        return torch.bfloat16, "this CPU multiplies bfloat16"
    return torch.float32, "this CPU has no bfloat16 arithmetic"


def _multiplies_bf16() -> bool:
    """Whether torch's matrix products have a bf16 instruction here.

    Without one, torch emulates: on a Zen 3 core (AVX2) bf16 prefill of SmolLM2 ran at a sixth to a quarter of
    fp32's speed, which half the memory traffic of decode does not outweigh.
    """
    import torch

    capabilities = torch.cpu.get_capabilities()
    if capabilities.get("avx512_bf16") or capabilities.get("amx_bf16"):
        return True
    return capabilities.get("architecture") == "aarch64" and _linux_cpu_flag("bf16")


def _linux_cpu_flag(flag: str) -> bool:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return False
    return any(line.startswith("Features") and flag in line.split() for line in lines)
