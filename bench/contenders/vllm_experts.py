"""vLLM's fused experts over weights in vLLM's own order: torch.ops._C.cpu_fused_moe."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from bench.contenders import Unsupported
from bench.experts_case import ExpertsCase
from bench.experts_inputs import Call, ExpertsInputs, Layer, Routing
from bench.paged_inputs import huge_tensor

BLOCK = 32  # sizes are multiples of it; vLLM fills inter up with zeros


def _unit(case: ExpertsCase) -> str:
    """vLLM's own rule for its argument `isa`."""
    return "amx" if case.dtype == "bf16" and torch.cpu._is_amx_tile_supported() else "vec"


def _padded(case: ExpertsCase, layer: Layer) -> tuple[torch.Tensor, torch.Tensor]:
    more = -case.inter % BLOCK
    if not more:
        return layer.gate_up, layer.down
    halves = layer.gate_up.view(case.experts, 2, case.inter, case.hidden)
    return F.pad(halves, (0, 0, 0, more)).flatten(1, 2), F.pad(layer.down, (0, more))


def experts_calls(ops, case: ExpertsCase, inputs: ExpertsInputs) -> list[Call]:
    """Raises Unsupported."""
    if case.is_quantized:
        raise Unsupported("vLLM's build has no int8 or int4 experts for this CPU")
    if case.work != "forward":
        raise Unsupported("no backward")
    if case.hidden % BLOCK:
        raise Unsupported(f"vLLM needs a hidden size that is a multiple of {BLOCK}")
    unit = _unit(case)

    def pack(weight: torch.Tensor) -> torch.Tensor:
        packed = huge_tensor(tuple(weight.shape), weight.dtype)
        ops.prepack_moe_weight(weight, packed, unit)
        return packed

    packed = [[pack(weight) for weight in _padded(case, layer)] for layer in inputs.layers]
    out = torch.empty_like(inputs.hidden)

    def call(layer: int, routing: Routing) -> Call:
        arguments = (out, inputs.hidden, *packed[layer], None, None, routing.weights, routing.experts)

        def run() -> torch.Tensor:
            ops.cpu_fused_moe(*arguments, False, "silu", unit)
            return out

        return run

    return [call(layer, routing) for layer, routing in inputs.turns]
