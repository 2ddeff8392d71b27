"""tileformer's operators, as a user calls them."""

from __future__ import annotations

from collections.abc import Callable

import torch

from bench.case import AttentionCase
from bench.contenders import Unavailable, tileformer_experts, tileformer_paged
from bench.experts_case import ExpertsCase, RouteCase
from bench.experts_inputs import Call, ExpertsInputs
from bench.inputs import Inputs
from bench.paged_case import AppendCase, PagedCase
from bench.paged_inputs import PagedCall, PagedInputs


class Implementation:
    """The ISA is the one in force: TILEFORMER_ISA in the worker's environment forces another."""

    def __init__(self) -> None:
        try:
            import tileformer
        except ImportError as error:
            raise Unavailable(f"tileformer is not installed: {error}") from error
        self.tileformer = tileformer
        try:
            self.isa = str(tileformer.isa())
        except (RuntimeError, ValueError) as error:
            raise Unavailable(str(error).splitlines()[0]) from error

    def describe(self) -> dict[str, str]:
        return {"version": self.tileformer.__version__, "isa": self.isa}

    def prepare(self, case: AttentionCase, inputs: Inputs) -> Callable[[], torch.Tensor]:
        # Arguments that have their default are left out, as a user would.
        options = {
            "causal": case.causal,
            "window": case.window if case.window != (-1, -1) else None,
            "attn_mask": inputs.mask,
            "alibi_slopes": inputs.alibi_slopes,
            "softcap": case.softcap,
            "sinks": inputs.sinks,
        }
        options = {name: value for name, value in options.items() if value is not None and value is not False}
        attention = self.tileformer.flash_attention
        return lambda: attention(inputs.query, inputs.key, inputs.value, **options)

    def prepare_paged(self, case: PagedCase, inputs: PagedInputs) -> PagedCall:
        return tileformer_paged.attention_call(self.tileformer, case, inputs)

    def prepare_append(self, case: AppendCase, inputs: PagedInputs) -> PagedCall:
        return tileformer_paged.append_call(self.tileformer, case, inputs)

    def prepare_experts(self, case: ExpertsCase, inputs: ExpertsInputs) -> list[Call]:
        return tileformer_experts.experts_calls(self.tileformer, case, inputs)

    def prepare_route(self, case: RouteCase, hidden: torch.Tensor, logits: torch.Tensor) -> Call:
        return tileformer_experts.route_call(self.tileformer, case, hidden, logits)
