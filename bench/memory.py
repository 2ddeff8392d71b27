"""Peak resident memory of one call, by Linux's own high-water mark."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from pathlib import Path

import torch


def status_kib(field: str) -> int:
    """A field of /proc/self/status in KiB (VmRSS: now, VmHWM: the highest so far)."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1])
    raise KeyError(field)


def peak_of_call(call: Callable[[], torch.Tensor | tuple[torch.Tensor, ...]]) -> dict[str, float]:
    """Runs `call` once.

    Returns seconds, and extra_bytes: how far resident memory rose in the call, less the bytes of its outputs.
    What is resident before (inputs, libraries, thread pools after a warm-up) does not count.
    """
    # Pages that the heap kept from freed tensors would serve the call unseen.
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")  # VmHWM := VmRSS
    before = status_kib("VmRSS")
    start = time.perf_counter()
    out = call()
    seconds = time.perf_counter() - start
    peak = status_kib("VmHWM")
    outputs = out if isinstance(out, tuple) else (out,)
    extra_bytes = (peak - before) * 1024 - sum(t.numel() * t.element_size() for t in outputs)
    return {"seconds": seconds, "extra_bytes": max(0, extra_bytes)}
