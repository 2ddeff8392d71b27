"""Which code computes the experts of a model, if it has some."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def has_experts(model: PreTrainedModel) -> bool:
    """Whether the model has layers whose experts transformers lets choose."""
    return any(hasattr(module, "is_transposed") and hasattr(module, "has_gate") for module in model.modules())


def choose_experts(model: PreTrainedModel, wanted: str | None, attention: str) -> str | None:
    """Makes `wanted` (a name of transformers' experts_implementation) compute the model's experts; None:
    tileformer beside its own attention, transformers' choice beside another. Returns the name of what does;
    None for a model without experts.
    """
    if not has_experts(model):
        return None
    if wanted is None and attention == "tileformer":
        wanted = "tileformer"
    if wanted is not None:
        model.set_experts_implementation(wanted)
    return model.config._experts_implementation
