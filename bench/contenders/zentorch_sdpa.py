"""AMD's zentorch plugin (ZenDNN): torch.ops.zentorch.zentorch_sdpa."""

from __future__ import annotations

from collections.abc import Callable

import torch

from bench.case import AttentionCase
from bench.contenders import Unavailable, dense_paged
from bench.contenders.torch_flash import sdpa_arguments
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
