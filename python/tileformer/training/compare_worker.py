"""A process that trains with one attention, a step per request.

The parent sends one JSON object per line on stdin and reads one per line from the original stdout:
{"do": "open", "settings": ...} -> {}, {"do": "step"} -> the step's record; or {"error": why}.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
from dataclasses import asdict
from typing import Any

from tileformer.models.errors import ModelError
from tileformer.models.loading import import_libraries
from tileformer.training.errors import TrainingError
from tileformer.training.settings import Settings
from tileformer.training.setup import Setup, prepare


class Worker:
    """Answers requests; one instance per process."""

    def __init__(self) -> None:
        self._setup: Setup | None = None

    def open(self, settings: dict[str, Any]) -> dict[str, Any]:
        import_libraries()
        self._setup = prepare(Settings.from_json(settings))
        return {}

    def step(self) -> dict[str, Any]:
        record = self._setup.training.advance()
        ctypes.CDLL(None).malloc_trim(0)  # while others run, hold no more than the model
        return asdict(record)


def serve() -> None:
    """Answers until stdin closes."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever libraries print
    worker = Worker()
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = getattr(worker, request.pop("do"))(**request)
        except (TrainingError, ModelError, MemoryError, NotImplementedError, RuntimeError) as error:
            answer = {"error": (str(error) or type(error).__name__).splitlines()[0]}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    serve()
