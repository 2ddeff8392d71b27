"""Hugging Face transformers: experts_implementation="tileformer", model.set_experts_implementation.

What a layer of experts computes is told by the flags that transformers' decorator use_experts_implementation
puts on it, its activation and its gate. A layer that computes something else runs transformers' own loop over
the experts, and a warning says so, once.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from transformers import activations
from transformers.integrations import moe
from transformers.utils import logging

from tileformer.fused_experts import fused_experts

_logger = logging.get_logger("tileformer")

_ACTIVATIONS = {
    activations.SiLUActivation: "silu",
    torch.nn.SiLU: "silu",
    activations.GELUActivation: "gelu",
    activations.GELUTanh: "gelu_tanh",
    activations.NewGELUActivation: "gelu_tanh",
    activations.FastGELUActivation: "gelu_tanh",
}
_FUNCTIONS = {F.silu: "silu", F.gelu: "gelu"}

# Gates of their own that are gpt-oss's clamped form, with module.alpha and module.limit.
_CLAMPED_GATES = {
    "transformers.models.gpt_oss.modeling_gpt_oss.GptOssExperts._apply_gate",
    "transformers.models.openai_privacy_filter.modeling_openai_privacy_filter"
    ".OpenAIPrivacyFilterExperts._apply_gate",
}


def _activation(module: torch.nn.Module) -> str | None:
    """What fused_experts calls the module's gate; None: it has no name for it."""
    if "_apply_gate" in vars(module):
        return None
    gate = type(module)._apply_gate
    if gate is moe._default_apply_gate:
        act = getattr(module, "act_fn", None)
        if type(act) is torch.nn.GELU:
            return "gelu_tanh" if act.approximate == "tanh" else "gelu"
        return _ACTIVATIONS.get(type(act)) or next((n for f, n in _FUNCTIONS.items() if act is f), None)
    return "swiglu_oai" if f"{gate.__module__}.{gate.__qualname__}" in _CLAMPED_GATES else None


def why_not(module: torch.nn.Module) -> str | None:
    """Why fused_experts cannot compute what this layer of experts does; None: it can."""
    if not module.has_gate:
        return "its experts have no gate"
    if module.has_post_expert_norm:
        return "a norm follows each expert"
    for name in ("gate_up_proj", "down_proj"):
        weight = getattr(module, name, None)
        if not isinstance(weight, torch.Tensor) or weight.dim() != 3 or not weight.is_floating_point():
            return f"{name} is no tensor of floats [experts, out, in]"
        if weight.element_size() == 1:
            return f"{name} is {weight.dtype}"
        if weight.device.type != "cpu":
            return f"{name} is on {weight.device}"
    if _activation(module) is None:
        act = getattr(module, "act_fn", None)
        return f"its gate is not one of silu, gelu, gelu_tanh, swiglu_oai (act_fn {type(act).__name__})"
    return None


def experts_forward(
    self: torch.nn.Module,
    hidden_states: torch.Tensor,
    top_k_index: torch.Tensor,
    top_k_weights: torch.Tensor,
) -> torch.Tensor:
    """A layer of experts, as transformers calls it: hidden_states [tokens, hidden], top_k_index and
    top_k_weights [tokens, k]; returns [tokens, hidden].

    Under expert parallelism, an index of num_experts or more is a slot that another rank serves.
    """
    if (reason := why_not(self)) is not None:
        return _eager(self, reason, hidden_states, top_k_index, top_k_weights)
    gate_up, down = self.gate_up_proj, self.down_proj
    if self.is_transposed:  # [experts, hidden, 2 * inter] storage, read where it lies
        gate_up, down = gate_up.transpose(1, 2), down.transpose(1, 2)
    if self._is_expert_parallel:
        top_k_index = top_k_index.clamp(max=gate_up.shape[0])
    activation = _activation(self)
    options = {"alpha": self.alpha, "limit": self.limit} if activation == "swiglu_oai" else {}
    out = fused_experts(
        hidden_states,
        gate_up,
        down,
        top_k_weights,
        top_k_index,
        activation=activation,
        gate_up_bias=self.gate_up_proj_bias if self.has_bias else None,
        down_bias=self.down_proj_bias if self.has_bias else None,
        interleaved=not self.is_concatenated,
        **options,
    )
    return out.to(hidden_states.dtype)  # under autocast the operator's is the lower precision


def _eager(module: torch.nn.Module, reason: str, *arguments: torch.Tensor) -> torch.Tensor:
    name = type(module).__name__
    eager = getattr(type(module).forward, "__wrapped__", None)
    if eager is None:
        raise ValueError(f"experts_implementation='tileformer': {name} is not supported: {reason}")
    _logger.warning_once(f"experts_implementation='tileformer': {name} runs transformers' loop: {reason}")
    return eager(module, *arguments)
