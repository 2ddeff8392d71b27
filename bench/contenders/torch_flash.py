"""torch's own fused CPU attention, the kernel that F.scaled_dot_product_attention chooses by default."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from bench.case import AttentionCase
from bench.contenders import Unsupported, dense_paged
from bench.inputs import Inputs, attended
from bench.paged_case import AppendCase, PagedCase
from bench.paged_inputs import PagedCall, PagedInputs

# What torch has no argument for becomes a dense mask; beyond this it would be the mask that is measured.
MAX_DENSE_MASK = 256 << 20


def sdpa_arguments(case: AttentionCase, inputs: Inputs) -> dict:
    """The case in the arguments of F.scaled_dot_product_attention. Raises Unsupported."""
    if case.softcap or case.sinks:
        raise Unsupported("no softcap, no sinks in torch's scaled_dot_product_attention")
    dense = case.window != (-1, -1) or case.alibi or (case.causal and inputs.mask is not None)
    mask = inputs.mask
    if dense:
        if case.seq**2 * (case.heads if case.alibi else 1) * 4 > MAX_DENSE_MASK:
            raise Unsupported("windows and ALiBi need a dense mask in torch, too large here")
        positions = torch.arange(case.seq)
        mask = attended(case, positions)
        if inputs.mask is not None and inputs.mask.dtype == torch.bool:
            mask = mask & inputs.mask
        elif inputs.mask is not None:
            mask = inputs.mask.masked_fill(~mask, -torch.inf)
        if inputs.alibi_slopes is not None:
            distance = (positions[None, :] - positions[:, None]).abs()
            bias = -inputs.alibi_slopes[None, :, None, None] * distance  # the fused kernel wants 4-D
            mask = bias.masked_fill(~mask, -torch.inf).to(inputs.query.dtype)
    return {
        "attn_mask": mask,
        "is_causal": case.causal and not dense,
        "enable_gqa": case.heads != case.kv_heads,
    }


class Implementation:
    """F.scaled_dot_product_attention with only the flash backend allowed."""

    backend = SDPBackend.FLASH_ATTENTION

    def describe(self) -> dict[str, str]:
        return {"version": torch.__version__, "isa": torch.backends.cpu.get_cpu_capability()}

    def prepare(self, case: AttentionCase, inputs: Inputs) -> Callable[[], torch.Tensor]:
        arguments = sdpa_arguments(case, inputs)

        tensors = inputs.query, inputs.key, inputs.value

        def run() -> torch.Tensor:
            return torch.nn.functional.scaled_dot_product_attention(*tensors, **arguments)

        def run_with_backend() -> torch.Tensor:
            with sdpa_kernel(self.backend):
                return run()

        # Naming the backend costs some 10 us per call, which a user of the default does not pay.
        is_default = torch._fused_sdp_choice(*tensors, **arguments) == self.backend.value
        return run if is_default else run_with_backend

    def prepare_paged(self, case: PagedCase, inputs: PagedInputs) -> PagedCall:
        sdpa = torch.nn.functional.scaled_dot_product_attention
        return dense_paged.sdpa_call(case, inputs, sdpa, enable_gqa=case.heads != case.kv_heads)

    def prepare_append(self, case: AppendCase, inputs: PagedInputs) -> PagedCall:
        return dense_paged.index_copy_call(case, inputs)
