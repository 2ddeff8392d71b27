"""Converts a GGUF file to a Hugging Face folder: fp32 weights as safetensors, configuration and tokenizer."""

import contextlib
import functools
import importlib.util
import shutil
from collections.abc import Iterator
from pathlib import Path

from tileformer.models.errors import ModelError

# transformers' GGUF reader needs the first, its dense loading the second.
_REQUIRED = ("gguf", "accelerate")


def convert_gguf(gguf_file: Path, folder: Path) -> None:
    """Writes the model in ``gguf_file`` into the existing, empty ``folder``.

    The weights become fp32, which holds every dequantised value exactly. Raises ModelError if a package is
    missing or transformers does not know the architecture.
    """
    missing = [name for name in _REQUIRED if importlib.util.find_spec(name) is None]
    if missing:
        raise ModelError(f"a GGUF model needs {' and '.join(missing)}: pip install 'tileformer[models]'")

    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    location = {"pretrained_model_name_or_path": str(gguf_file.parent), "gguf_file": gguf_file.name}
    try:
        with _one_reader_per_file():
            tokenizer = AutoTokenizer.from_pretrained(**location, local_files_only=True)
            model = AutoModelForCausalLM.from_pretrained(
                **location, dtype=torch.float32, local_files_only=True
            )
    except Exception as error:  # a torn file makes its parsers raise anything
        raise ModelError(f"model {gguf_file}: transformers cannot read this GGUF file: {error}") from error

    # The weights are dense now; transformers still takes the model for a quantised one and would refuse to
    # save it.
    model.hf_quantizer = None
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    _check_space(folder, model.num_parameters() * 4)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _check_space(folder: Path, needed: int) -> None:
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise ModelError(
            f"the converted model takes {needed >> 20} MiB, the cache folder {folder.parent} has "
            f"{free >> 20} MiB free; "
            "set XDG_CACHE_HOME to a folder with room"
        )


@contextlib.contextmanager
def _one_reader_per_file() -> Iterator[None]:
    """Lets gguf parse a file once: transformers opens it for tokenizer, configuration and weights anew.

    Each parse walks 10^5 strings of the vocabulary in Python, about 5 s for SmolLM2.
    """
    import gguf

    reader = gguf.GGUFReader
    gguf.GGUFReader = functools.cache(reader)
    try:
        yield
    finally:
        gguf.GGUFReader = reader
