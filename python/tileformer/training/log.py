"""The log of a run: one JSON object per step, one step per line."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from tileformer.training.errors import TrainingStopped


@dataclass(frozen=True)
class Record:
    """One step, as it is logged."""

    step: int  # from 1
    loss: float  # before the step's update
    learning_rate: float
    gradient_norm: float  # before clipping
    tokens_per_second: float
    peak_rss_mib: float


class Log:
    """Appends records to a file; a reader never sees a torn line but the last."""

    def __init__(self, path: Path, *, keep_steps: int = 0) -> None:
        """Opens the log. Records after `keep_steps` are dropped: the resumed run makes them again, equal."""
        self.path = path
        self.records = [record for record in read_log(path) if record.step <= keep_steps]
        partial = path.with_name(f".{path.name}.partial")
        try:
            with partial.open("w") as file:
                file.writelines(_line(record) for record in self.records)
                file.flush()
                os.fsync(file.fileno())
            os.replace(partial, path)
            self._file = path.open("a")
        except OSError as error:
            raise TrainingStopped(f"cannot write {path}: {error.strerror or error}") from error

    def append(self, record: Record) -> None:
        self.records.append(record)
        try:
            self._file.write(_line(record))
            self._file.flush()
        except OSError as error:
            raise TrainingStopped(f"cannot write {self.path}: {error.strerror or error}") from error

    def close(self) -> None:
        try:
            self._file.close()
        except OSError as error:  # what append() could not write is still in the buffer
            raise TrainingStopped(f"cannot write {self.path}: {error.strerror or error}") from error


def read_log(path: Path) -> list[Record]:
    """The whole records of a log; none if there is no log."""
    try:
        lines = path.read_text().splitlines()
    except FileNotFoundError:
        return []
    records = []
    for line in lines:
        try:
            records.append(Record(**json.loads(line)))
        except (ValueError, TypeError):
            break  # torn by a kill
    return records


def _line(record: Record) -> str:
    return json.dumps(asdict(record)) + "\n"
