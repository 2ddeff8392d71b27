"""The line that closes an answer."""

from __future__ import annotations

import resource

import tileformer
from tileformer.models.generation import Generation


def closing_line(generation: Generation, *, attention: str, cache: str, dtype: str, threads: int) -> str:
    """Tokens, speeds, what computed them, and the most memory that the process held at any time."""
    decode = f"{generation.decode_speed:.1f} tok/s" if generation.decode_seconds else "none"
    return " | ".join(
        [
            f"{generation.prompt_tokens} prompt + {len(generation.tokens)} new tokens",
            f"prefill {generation.prefill_speed:.1f} tok/s",
            f"decode {decode}",
            f"{attention} attention",
            f"{cache} cache",
            f"ISA {instruction_set(attention)}",
            dtype,
            f"{threads} thread{'s' if threads > 1 else ''}",
            f"peak memory {peak_memory_mib():.0f} MiB",
        ]
    )


def instruction_set(attention: str) -> str:
    """The ISA of the kernels behind ``attention``: ours, or what torch chose for its own."""
    if attention == "tileformer":
        return tileformer.isa()
    import torch

    return torch.backends.cpu.get_cpu_capability().lower()


def peak_memory_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024  # Linux counts KiB
