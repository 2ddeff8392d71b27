"""Who is timed: tileformer and its peers, each behind the same two calls.

A contender lives in a worker process of its own (see worker.py), because two peers may not fit into one
process, may need another ISA than this machine has (and die of it), or read an environment variable at start.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Protocol

import torch

from bench.case import AttentionCase
from bench.inputs import Inputs


class Unavailable(Exception):
    """The contender cannot run on this machine or is not installed; the message says which."""


class Unsupported(Exception):
    """The contender runs, but not this case; the message says why."""


class Contender(Protocol):
    """One way to compute attention, or whatever else the rows that name it are about."""

    def describe(self) -> dict[str, str]:
        """version, and whatever says which kernel runs (isa, unit)."""
        ...

    def prepare(self, case: AttentionCase, inputs: Inputs) -> Callable[[], torch.Tensor]:
        """The call to time: everything that a user would do once, such as packing a cache, is done here.

        The result has shape [batch, heads, seq, dim]. Raises Unsupported.

        Those that have a cache also have prepare_paged(PagedCase, PagedInputs) and prepare_append(AppendCase,
        PagedInputs), which return a PagedCall. Those that have experts have prepare_experts(ExpertsCase,
        ExpertsInputs), which returns a call for each of the inputs' turns, or prepare_route(RouteCase, tokens
        [tokens, hidden], logits [tokens, experts]), which returns the call.
        """
        ...


# Name in tables -> module with a class Implementation. In the order of the columns.
MODULES = {
    "tileformer": "tileformer_attention",
    "torch-flash": "torch_flash",
    "torch-math": "torch_math",
    "zentorch": "zentorch_sdpa",
    "vllm": "vllm_cpu",
    "sglang": "sglang_experts",
    "torch-grouped": "torch_grouped",
    "torch-loop": "torch_loop",
}
PEERS = [name for name in MODULES if name != "tileformer"]
# The same for losses; their class has loss() in place of prepare() (bench/loss_suite.py).
LOSS_MODULES = {
    "tileformer-loss": "tileformer_loss",
    "torch-loss": "torch_loss",
    "torch-loss-fp32": "torch_loss_fp32",
}


def open_contender(name: str) -> Contender:
    """Starts a contender in this process. Raises Unavailable."""
    return importlib.import_module(f"bench.contenders.{(MODULES | LOSS_MODULES)[name]}").Implementation()
