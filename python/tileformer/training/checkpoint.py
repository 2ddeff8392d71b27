"""Checkpoints: everything that the following steps depend on, in one file that is whole or absent.

checkpoint-<step>.pt    written under another name, flushed to the disk, renamed; only then older ones go
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from pathlib import Path
from typing import Any

from tileformer.training.errors import TrainingError, TrainingStopped

FORMAT = 1
_NAME = re.compile(r"checkpoint-(\d+)\.pt")
_PARTIAL = ".checkpoint.partial"


def save_checkpoint(folder: Path, step: int, state: dict[str, Any]) -> Path:
    """Writes the state after `step` steps. Raises TrainingStopped, and then those before are untouched."""
    import torch

    partial, path = folder / _PARTIAL, folder / f"checkpoint-{step:08d}.pt"
    try:
        with partial.open("wb") as file:
            torch.save({"format": FORMAT, "step": step, **state}, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
        _flush_names(folder)
    except (OSError, RuntimeError) as error:  # torch's writer turns an OSError into a RuntimeError
        with contextlib.suppress(OSError):
            partial.unlink()
        raise TrainingStopped(_why(folder, step, error)) from error
    except BaseException:
        with contextlib.suppress(OSError):
            partial.unlink()
        raise
    for older_step, older in checkpoints(folder):
        if older_step != step:
            with contextlib.suppress(OSError):
                older.unlink()
    return path


def load_checkpoint(folder: Path) -> dict[str, Any] | None:
    """The newest state that save_checkpoint() wrote, or None if there is none. Raises TrainingError."""
    import torch

    found = checkpoints(folder)
    if not found:
        return None
    _, path = found[-1]
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged file makes torch, zipfile and pickle raise anything
        raise TrainingError(f"checkpoint {path} cannot be read: {error}") from error
    if state.get("format") != FORMAT:
        raise TrainingError(
            f"checkpoint {path} is of format {state.get('format')}; this version reads {FORMAT}"
        )
    return state


def checkpoints(folder: Path) -> list[tuple[int, Path]]:
    """(step, file) of every checkpoint, the newest last."""
    return sorted(
        (int(match[1]), path)
        for path in folder.iterdir()
        if (match := _NAME.fullmatch(path.name)) is not None
    )


def _flush_names(folder: Path) -> None:
    """A rename outlives a power cut once the folder is on the disk too."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _why(folder: Path, step: int, error: Exception) -> str:
    free = shutil.disk_usage(folder).free >> 20
    found = checkpoints(folder)
    left = f"the checkpoint of step {found[-1][0]} is whole" if found else "there is no earlier checkpoint"
    cause = error.strerror if isinstance(error, OSError) and error.strerror else str(error).splitlines()[0]
    return (
        f"cannot write the checkpoint of step {step} into {folder} ({free} MiB free): {cause}; {left}. "
        "Make room, then go on with --resume"
    )
