"""tileformer.fused_experts and tileformer.route, as a user calls them."""

from __future__ import annotations

from types import ModuleType

import torch

from bench.experts_case import ExpertsCase, RouteCase
from bench.experts_inputs import Call, ExpertsInputs, Layer, Routing


def experts_calls(tileformer: ModuleType, case: ExpertsCase, inputs: ExpertsInputs) -> list[Call]:
    """Codes are made beforehand, plain weights are used where they lie."""

    def weights_of(layer: Layer) -> tuple:
        if not case.is_quantized:
            return layer.gate_up, layer.down
        packed = tileformer.pack_experts(
            layer.gate_up, layer.down, quantize=case.weight_dtype, group=case.group
        )
        return packed, None

    layers = [weights_of(layer) for layer in inputs.layers]

    def call(layer: int, routing: Routing) -> Call:
        arguments = (inputs.hidden, *layers[layer], routing.weights, routing.experts)
        return lambda: tileformer.fused_experts(*arguments)

    return [call(layer, routing) for layer, routing in inputs.turns]


def route_call(tileformer: ModuleType, case: RouteCase, hidden: torch.Tensor, logits: torch.Tensor) -> Call:
    """permute_tokens copies the rows of the tokens, which fused_experts does not: it costs less than this."""

    def run() -> torch.Tensor:
        _, experts = tileformer.route(logits, case.top_k)
        return tileformer.permute_tokens(hidden, experts, case.experts)[0]

    return run
