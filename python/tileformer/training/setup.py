"""From settings to a training that is ready for its next step."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tileformer.models.precision import resolve_dtype
from tileformer.training import fused_loss
from tileformer.training.loop import Training
from tileformer.training.model import Trainee, make_tokenizer, make_trainee
from tileformer.training.packing import PackedRows
from tileformer.training.settings import Settings
from tileformer.training.text import read_documents
from tileformer.training.tokens import tokenize


@dataclass(frozen=True)
class Setup:
    trainee: Trainee
    rows: PackedRows
    training: Training


def resolve_for_machine(settings: Settings) -> tuple[Settings, str]:
    """The settings with all that this machine decides, and why it decided for its dtype ("" if it was told).

    Raises TrainingError.
    """
    import torch

    settings = settings.resolve()
    if settings.fused_loss:
        fused_loss.require()
    dtype, reason = resolve_dtype(settings.dtype)
    resolved = replace(
        settings,
        dtype=str(dtype).removeprefix("torch."),
        threads=settings.threads or torch.get_num_threads(),
    )
    return resolved, reason


def prepare(settings: Settings) -> Setup:
    """Reads, tokenises and packs the text and makes the model. Raises ModelError or TrainingError."""
    import torch

    torch.set_num_threads(settings.threads)
    rows = prepare_text(settings)
    trainee = make_trainee(settings)
    return Setup(trainee, rows, Training(trainee.model, rows, settings))


def prepare_text(settings: Settings) -> PackedRows:
    """The rows of the text; its tokens come from the cache if it was tokenised before."""
    stream = tokenize(read_documents(settings.text), make_tokenizer(settings))
    return PackedRows(stream, settings.sequence_length, settings.batch_size, settings.seed)
