"""The loss straight from the last hidden states: no tensor of [tokens, vocabulary] is ever made.

The one place that knows how tileformer fuses the loss of a transformers model, and since when.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tileformer.training.errors import TrainingError

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def is_available() -> bool:
    """Whether this tileformer has a fused loss."""
    import tileformer

    return hasattr(tileformer, "linear_cross_entropy")


def require() -> None:
    """Raises TrainingError if this tileformer has no fused loss."""
    if not is_available():
        raise TrainingError("--fused-loss: this tileformer has no linear_cross_entropy; use --no-fused-loss")


def fuse_if(wanted: bool | None, model: PreTrainedModel, attention: str) -> bool:
    """Makes model(..., labels=...) compute its loss without logits: as wanted, or by default (None) with
    tileformer's attention and a model that can be fused. Returns whether it does. Raises TrainingError.
    """
    if wanted is False or (wanted is None and (attention != "tileformer" or not is_available())):
        return False
    require()
    from tileformer.integrations.transformers import fuse_linear_cross_entropy

    try:
        fuse_linear_cross_entropy(model)
    except ValueError as error:
        if wanted is None:
            return False
        raise TrainingError(f"--fused-loss: {error}; use --no-fused-loss") from error
    return True
