"""transformers' experts over torch's grouped_mm: what a Hugging Face MoE model runs on a CPU by default."""

from __future__ import annotations

import torch

from bench.contenders import Unavailable, Unsupported
from bench.experts_case import ExpertsCase, RouteCase
from bench.experts_inputs import Call, ExpertsInputs, Layer, Routing


class Implementation:
    """MixtralExperts with the weights of the case."""

    name = "grouped_mm"  # of transformers' experts implementations

    def __init__(self) -> None:
        try:
            import transformers
            from transformers.models.mixtral import modeling_mixtral
        except ImportError as error:
            raise Unavailable(f"transformers is not installed: {error}") from error
        self.version, self.modeling = transformers.__version__, modeling_mixtral

    def describe(self) -> dict[str, str]:
        return {
            "version": torch.__version__,
            "transformers": self.version,
            "isa": torch.backends.cpu.get_cpu_capability(),
        }

    def prepare_experts(self, case: ExpertsCase, inputs: ExpertsInputs) -> list[Call]:
        """Raises Unsupported."""
        if case.is_quantized:
            raise Unsupported("transformers has no experts with such weights on CPUs")
        modules = [self._module(case, layer) for layer in inputs.layers]

        def call(layer: int, routing: Routing) -> Call:
            chosen = routing.experts.long()
            return lambda: modules[layer](inputs.hidden, chosen, routing.weights)

        return [call(layer, routing) for layer, routing in inputs.turns]

    def prepare_route(self, case: RouteCase, hidden: torch.Tensor, logits: torch.Tensor) -> Call:
        """What Mixtral's router and its experts do before the first product."""

        def run() -> torch.Tensor:
            weights, chosen = logits.float().softmax(-1).topk(case.top_k, -1)
            weights = weights / weights.sum(-1, keepdim=True)
            experts, order = chosen.flatten().sort()
            rows = hidden[order // case.top_k]
            counts = torch.histc(experts.float(), bins=case.experts, min=0, max=case.experts - 1)
            counts.cumsum(0, dtype=torch.int32)
            weights.flatten()[order]
            return rows

        return run

    def _module(self, case: ExpertsCase, layer: Layer) -> torch.nn.Module:
        config = self.modeling.MixtralConfig(
            hidden_size=case.hidden, intermediate_size=case.inter, num_local_experts=case.experts
        )
        config._experts_implementation = self.name
        with torch.device("meta"):
            module = self.modeling.MixtralExperts(config)
        for name, weight in (("gate_up_proj", layer.gate_up), ("down_proj", layer.down)):
            assert getattr(module, name).shape == weight.shape
            # As it is: a Parameter made of it would be another leaf than the one whose gradient is asked for.
            del module._parameters[name]
            setattr(module, name, weight)
        return module
