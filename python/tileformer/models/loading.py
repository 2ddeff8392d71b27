"""Loads tokenizer and model from a Hugging Face folder."""

from __future__ import annotations

import contextlib
import gc
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tileformer.models.errors import ModelError
from tileformer.models.experts import choose_experts

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


@dataclass(frozen=True)
class LoadedModel:
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase


def import_libraries() -> None:
    """Imports what loading takes from transformers, most of the time of a start, and quietens it.

    Raises ModelError if transformers is not installed.
    """
    try:
        import transformers
    except ImportError as error:
        raise ModelError("models are loaded by transformers: pip install 'tileformer[models]'") from error
    from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel  # noqa: F401

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    warnings.filterwarnings("ignore", category=FutureWarning)


def load_model(folder: Path, dtype: torch.dtype, attention: str) -> LoadedModel:
    """Loads the causal language model in ``folder`` with ``attention`` as transformers' attn_implementation,
    and beside tileformer's attention its experts.

    Weights that are stored in ``dtype`` are mapped from the file, not copied. Raises ModelError.
    """
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    try:
        config = AutoConfig.from_pretrained(folder, local_files_only=True)
        tokenizer = AutoTokenizer.from_pretrained(folder, config=config, local_files_only=True)
        model = AutoModelForCausalLM.from_pretrained(
            folder, config=config, dtype=dtype, attn_implementation=attention, local_files_only=True
        )
        choose_experts(model, None, attention)
    except Exception as error:  # configuration and weights are the user's files: readers raise anything
        raise ModelError(f"model {folder}: cannot be loaded: {error}") from error
    return LoadedModel(model=model.eval(), tokenizer=tokenizer)


def load_tokenizer(folder: Path) -> PreTrainedTokenizerBase:
    """Loads the tokenizer in ``folder``. Raises ModelError."""
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except Exception as error:  # the user's files: readers raise anything
        raise ModelError(f"model {folder}: its tokenizer cannot be loaded: {error}") from error


@contextlib.contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Pauses the collector while libraries are imported and a model is built, and exempts what they leave.

    Nearly all of those objects live as long as the process. Walking them again and again costs a sixth of a
    start, and every later full collection 0.1 s in the middle of an answer.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
