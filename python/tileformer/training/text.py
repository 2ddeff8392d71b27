"""Documents to learn from: the sources of Python's standard library, or files of the user."""

from __future__ import annotations

import os
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from tileformer.training.errors import TrainingError

# Below the standard library: not part of it, or not written to be read.
_SKIPPED = {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"}


def read_documents(text: str | None) -> list[str]:
    """The documents of a file or folder by their path; None: the standard library. Raises TrainingError."""
    if text is None:
        return standard_library()
    path = Path(text).expanduser()
    try:
        if path.is_file():
            documents = [path.read_text(encoding="utf-8")]
        elif path.is_dir():
            documents = [document for file in _files(path, set()) if (document := _text_of(file)) is not None]
        else:
            raise TrainingError(f"--text {text!r}: no such file or folder")
    except UnicodeDecodeError as error:
        raise TrainingError(
            f"--text {text!r}: not UTF-8 text: {error.reason} at byte {error.start}"
        ) from error
    except OSError as error:
        raise TrainingError(f"--text {text!r}: {error.strerror or error}") from error
    if not any(document.strip() for document in documents):
        raise TrainingError(f"--text {text!r}: holds no text")
    return documents


def standard_library() -> list[str]:
    """Every source file of this Python's library but its tests."""
    folder = Path(sysconfig.get_path("stdlib"))
    documents = [
        file.read_text(encoding="utf-8", errors="replace")
        for file in _files(folder, _SKIPPED)
        if file.suffix == ".py"
    ]
    if not documents:
        raise TrainingError(f"no Python sources in {folder}: name a text with --text FILE_OR_FOLDER")
    return documents


def _files(folder: Path, skipped: set[str]) -> Iterator[Path]:
    """Regular files below the folder, hidden ones left out, in an order that every machine has."""
    for parent, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if name not in skipped and not name.startswith("."))
        for name in sorted(files):
            path = Path(parent, name)
            if not name.startswith(".") and path.is_file():
                yield path


def _text_of(file: Path) -> str | None:
    """The file's text; None if it is something else than text."""
    data = file.read_bytes()
    try:
        return None if b"\0" in data else data.decode("utf-8")
    except UnicodeDecodeError:
        return None
