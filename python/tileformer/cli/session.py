"""From the options of a command to a model that is ready to generate."""

from __future__ import annotations

import argparse
import contextlib
import io
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

import tileformer
from tileformer.cli.errors import UsageError
from tileformer.cli.progress import note, step
from tileformer.models.conversion_cache import ConversionCache
from tileformer.models.generation import warm_up
from tileformer.models.gguf import convert_gguf
from tileformer.models.loading import LoadedModel, import_libraries, load_model, no_garbage_collection
from tileformer.models.precision import resolve_dtype
from tileformer.models.source import ModelSource, find_model

if TYPE_CHECKING:
    from transformers import Cache, PreTrainedModel

ATTENTIONS = ("tileformer", "sdpa", "eager")
CACHES = ("paged", "dynamic")


@dataclass(frozen=True)
class Session:
    loaded: LoadedModel
    dtype: str  # torch's name
    threads: int


def open_session(options: argparse.Namespace, attention: str) -> Session:
    """Finds, converts if need be, and loads the model that ``options`` name. Raises ModelError."""
    start = perf_counter()
    source = find_model(options.model)
    with no_garbage_collection():
        # Checking the converted files is hashing without the interpreter lock: it hides behind the imports.
        with ThreadPoolExecutor(max_workers=1) as background, step("loading libraries"):
            cached = background.submit(_cached_folder, source)
            import_libraries()
            folder = cached.result()
        if folder is None:
            folder = _convert(source)

        import torch

        if options.threads is not None:
            torch.set_num_threads(options.threads)
        dtype, reason = resolve_dtype(options.dtype)
        dtype_name = str(dtype).removeprefix("torch.")
        require_attention(attention)
        with step(f"loading {source.name}"):
            loaded = load_model(folder, dtype, attention)
            warm_up(loaded.model)
    because = f" ({reason})" if reason else ""
    note(f"{source.name}, {dtype_name}{because}, ready in {perf_counter() - start:.1f} s")
    return Session(loaded=loaded, dtype=dtype_name, threads=torch.get_num_threads())


def cache_kind(wanted: str | None, model: PreTrainedModel, attention: str) -> str:
    """The cache, one of CACHES: what is wanted, otherwise pages where attention and model go with them.

    Raises UsageError if pages are wanted and they do not.
    """
    from tileformer.integrations.model_sizes import why_not_paged

    reason = why_not_paged(model)
    if attention != ATTENTIONS[0]:
        reason = f"--attn {attention} reads no pages"
    if wanted == "paged" and reason is not None:
        raise UsageError(f"--cache paged is not possible: {reason}; allowed is --cache dynamic")
    return wanted or ("paged" if reason is None else "dynamic")


def new_cache(kind: str, model: PreTrainedModel, tokens: int) -> Cache | None:
    """An empty cache for one sequence of `tokens` at most; None: the model makes its own."""
    return tileformer.PagedKVCache.for_model(model, max_tokens=tokens) if kind == "paged" else None


def _cached_folder(source: ModelSource) -> Path | None:
    """The Hugging Face folder of ``source`` if there is one already."""
    if not source.is_gguf:
        return source.path
    cache = ConversionCache(source.path)
    return cache.folder if cache.is_whole() else None


def _convert(source: ModelSource) -> Path:
    # The libraries draw their own bars and warnings on stderr, across our line.
    with (
        step(f"converting {source.path.name}, once for all starts", quiet_in_pipes=False),
        contextlib.redirect_stderr(io.StringIO()),
    ):
        return ConversionCache(source.path).make(convert_gguf)


def require_attention(attention: str) -> None:
    """Raises UsageError if transformers does not know ``attention`` or it cannot run here."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    if attention == "tileformer":
        try:
            tileformer.isa()
        except ValueError as error:  # TILEFORMER_ISA names what is not here
            raise UsageError(str(error)) from error
    if attention not in ("eager", *ALL_ATTENTION_FUNCTIONS.valid_keys()):
        raise UsageError(f"attention {attention!r} is not registered with transformers")
