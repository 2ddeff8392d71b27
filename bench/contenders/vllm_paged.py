"""vLLM's cache: pages of 128 tokens, each in vLLM's own order of elements, filled by its own kernel."""

from __future__ import annotations

import torch

from bench.contenders import Unsupported
from bench.inputs import DTYPES
from bench.paged_case import AppendCase, PagedCase
from bench.paged_inputs import PagedCall, PagedInputs, huge_tensor

BLOCK = 128  # tokens per page, vLLM's default on CPUs
# What vLLM calls codes of a byte. One scale serves the whole tensor; some units of its CPU build have none.
CODES = {"e4m3": "fp8_e4m3", "e5m2": "fp8_e5m2"}


class VllmCache:
    """A filled cache. append() writes all keys and values, attend() attends to them."""

    def __init__(self, ops, case: PagedCase | AppendCase, inputs: PagedInputs, unit: str) -> None:
        if case.cache_dtype != case.dtype and case.cache_dtype not in CODES:
            raise Unsupported(f"vLLM has no {case.cache_dtype} cache on CPUs")
        dtype = torch.uint8 if case.cache_dtype in CODES else DTYPES[case.dtype]
        self.kind = CODES.get(case.cache_dtype, "auto")
        self.ops, self.case, self.inputs, self.unit = ops, case, inputs, unit
        self.table, self.slots = inputs.table(BLOCK), inputs.slots(BLOCK)
        # A column that no sequence has is never read, but vLLM may prefetch it.
        self.table.clamp_(min=0)
        pages = int(self.table.max()) + 1
        self.cache = huge_tensor((pages, case.kv_heads, 2 * BLOCK, case.dim), dtype).zero_()
        self.keys, self.values = self.cache.chunk(2, dim=2)

    def append(self) -> None:
        self.ops.cpu_attn_reshape_and_cache(
            self.inputs.key, self.inputs.value, self.keys, self.values, self.slots, self.unit,
            1.0, 1.0, self.kind,
        )  # fmt: skip

    def attention_call(self) -> PagedCall:
        case, inputs = self.case, self.inputs
        self.append()
        starts, query = inputs.starts, inputs.query
        metadata = self.ops.get_scheduler_metadata(
            len(case.lengths), case.heads, case.kv_heads, case.dim, inputs.lengths, query.dtype, starts,
            True, -1, self.unit, True, None, self.kind,
        )  # fmt: skip
        out = torch.empty_like(query)

        def run() -> torch.Tensor:
            self.ops.cpu_attention_with_kv_cache(
                query, self.keys, self.values, out, starts, inputs.lengths, case.dim**-0.5, True, None, -1,
                self.table, 0.0, metadata, None, None, 1.0, 1.0, self.kind,
            )  # fmt: skip
            return out

        return PagedCall(run, run, self.cache.nbytes)

    def append_call(self) -> PagedCall:
        """What it wrote is not compared, as its order of elements is its own; attention_call relies on it."""
        return PagedCall(self.append, None, self.cache.nbytes)
