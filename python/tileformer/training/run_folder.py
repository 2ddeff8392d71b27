"""The folder of a run (--out), which never loses what is in it.

run.json                     the settings, resolved, and the key of the text
log.jsonl                    a line per step
checkpoint-<step>.pt         the newest state
config.json, *.safetensors   once the run is done: the model, for transformers and `tileformer generate`
loss.png                     the losses, if matplotlib is installed
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from tileformer.training.errors import TrainingError, TrainingStopped
from tileformer.training.settings import Settings

if TYPE_CHECKING:
    from tileformer.training.model import Trainee

_RUN, _LOCK, _PARTIAL_MODEL = "run.json", ".lock", ".model.partial"


class RunFolder:
    """One run's folder, held by this process alone. Raises TrainingError if it cannot be that."""

    def __init__(self, path: Path, settings: Settings) -> None:
        self.path, self.settings = path, settings
        self.log_path = path / "log.jsonl"
        try:
            self._lock = (path / _LOCK).open("w")
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise TrainingError(f"--out {path}: another process trains in this folder") from None
        except OSError as error:
            raise TrainingError(f"--out {path}: {error.strerror or error}") from error

    @classmethod
    def create(cls, path: Path, settings: Settings) -> RunFolder:
        """A folder that is new or empty."""
        refuse_used(path)
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise TrainingError(f"--out {path}: {error.strerror or error}") from error
        folder = cls(path, settings)
        folder._write_run()
        return folder

    def save_model(self, trainee: Trainee) -> None:
        """Writes model and tokenizer. config.json comes last: a folder that has it has all of it."""
        partial = self.path / _PARTIAL_MODEL
        shutil.rmtree(partial, ignore_errors=True)
        trainee.model.config.use_cache = True
        try:
            trainee.tokenizer.save_pretrained(partial)
            trainee.model.save_pretrained(partial)
            for file in sorted(partial.iterdir(), key=lambda file: file.name == "config.json"):
                os.replace(file, self.path / file.name)
            partial.rmdir()
        except Exception as error:  # safetensors has an exception of its own for a full disk
            shutil.rmtree(partial, ignore_errors=True)
            free = shutil.disk_usage(self.path).free >> 20
            raise TrainingStopped(
                f"cannot write the model into {self.path} ({free} MiB free): {error}; the checkpoint is "
                "whole. Make room, then write the model with --resume"
            ) from error

    def close(self) -> None:
        self._lock.close()

    def _write_run(self) -> None:
        partial = self.path / f".{_RUN}.partial"
        try:
            partial.write_text(json.dumps({"settings": self.settings.to_json()}, indent=1) + "\n")
            os.replace(partial, self.path / _RUN)
        except OSError as error:
            raise TrainingError(f"--out {self.path}: {error.strerror or error}") from error


def refuse_used(path: Path) -> None:
    """Raises TrainingError if there is anything in the folder that a new run could harm."""
    try:
        names = {file.name for file in path.iterdir()} - {_LOCK}
    except FileNotFoundError:
        return
    except OSError as error:
        raise TrainingError(f"--out {path}: {error.strerror or error}") from error
    if _RUN in names:
        raise TrainingError(
            f"--out {path}: holds a run already; go on with it (tileformer train --resume --out {path}), "
            "or name another folder"
        )
    if names:
        raise TrainingError(
            f"--out {path}: holds other files ({', '.join(sorted(names)[:3])}); "
            "allowed are a new folder and an empty one"
        )


def read_settings(path: Path) -> Settings:
    """The settings of the run in a folder. Raises TrainingError."""
    try:
        return Settings.from_json(json.loads((path / _RUN).read_text())["settings"])
    except (FileNotFoundError, NotADirectoryError):
        raise TrainingError(f"--out {path}: holds no run to resume") from None
    except OSError as error:
        raise TrainingError(f"--out {path}: {error.strerror or error}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise TrainingError(f"--out {path}: {_RUN} cannot be read: {error}") from error
