"""AMD's zentorch plugin (ZenDNN): torch.ops.zentorch.zentorch_sdpa and zentorch_fused_moe."""

from __future__ import annotations

from collections.abc import Callable

import torch

from bench.case import AttentionCase
from bench.contenders import Unavailable, Unsupported, dense_paged
from bench.contenders.torch_flash import sdpa_arguments
from bench.experts_case import ExpertsCase
from bench.experts_inputs import Call, ExpertsInputs, Routing
from bench.inputs import Inputs
from bench.paged_case import PagedCase
from bench.paged_inputs import PagedCall, PagedInputs
from bench.peer_packages import ZENTORCH, locate


def _as_bias(mask: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """It takes no boolean masks."""
    if mask.dtype != torch.bool:
        return mask
    return torch.zeros(mask.shape, dtype=dtype).masked_fill(~mask, -torch.inf)


class Implementation:
    """The operator alone, loaded from its library: the Python package would need further dependencies."""

    def __init__(self) -> None:
        folder, self.version = locate(ZENTORCH)
        try:
            torch.ops.load_library(str(folder / "libzentorch.so"))
            self.op = torch.ops.zentorch.zentorch_sdpa
        except (OSError, AttributeError) as error:
            raise Unavailable(f"zentorch {self.version} does not load: {error}") from error
        if not torch.ops.zentorch.zentorch_is_avx512_supported():
            raise Unavailable(
                f"zentorch {self.version} has no attention of its own without AVX-512 (it calls torch's)"
            )

    def describe(self) -> dict[str, str]:
        return {"version": self.version}

    def prepare(self, case: AttentionCase, inputs: Inputs) -> Callable[[], torch.Tensor]:
        arguments = sdpa_arguments(case, inputs)
        del arguments["enable_gqa"]  # no such argument: grouped heads are tried as they are
        if arguments["attn_mask"] is not None:
            arguments["attn_mask"] = _as_bias(arguments["attn_mask"], inputs.query.dtype)
        return lambda: self.op(inputs.query, inputs.key, inputs.value, **arguments)[0]

    def prepare_paged(self, case: PagedCase, inputs: PagedInputs) -> PagedCall:
        def sdpa(query, key, value, attn_mask=None, is_causal=False):
            return self.op(query, key, value, attn_mask=attn_mask, is_causal=is_causal)[0]

        return dense_paged.sdpa_call(case, inputs, sdpa, dense_mask=_as_bias)

    def prepare_experts(self, case: ExpertsCase, inputs: ExpertsInputs) -> list[Call]:
        """It packs weights in the first call and keeps them by their address. Raises Unsupported."""
        if case.is_quantized:
            raise Unsupported("of zentorch's experts only those with plain weights are compared")
        if case.work != "forward":
            raise Unsupported("no backward")
        torch.ops.zentorch.zentorch_flush_moe_weight_cache()
        out = torch.empty_like(inputs.hidden)

        def call(layer: int, routing: Routing) -> Call:
            weights = inputs.layers[layer]
            arguments = (out, inputs.hidden, weights.gate_up, weights.down, None, None, routing.weights)

            def run() -> torch.Tensor:
                torch.ops.zentorch.zentorch_fused_moe(*arguments, routing.experts, False, "silu")
                return out

            return run

        return [call(layer, routing) for layer, routing in inputs.turns]
