"""The comparison's side of a worker (compare_worker.py): start it, ask it, survive its death."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import tempfile
from typing import Any

from tileformer.training.log import Record
from tileformer.training.settings import Settings


class ContenderFailed(Exception):
    """The worker could not do what was asked; the message says why."""


class CompareProcess:
    """One contender in its own process."""

    def __init__(self, settings: Settings) -> None:
        self._stderr = tempfile.TemporaryFile(mode="w+")  # noqa: SIM115  (closed in close)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tileformer.training.compare_worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            text=True,
            start_new_session=True,  # Ctrl-C is for the parent, which closes the workers
        )
        self._send({"do": "open", "settings": settings.to_json()})

    def open(self) -> None:
        """Waits until the model is there. Raises ContenderFailed."""
        self._receive("start")

    def step(self) -> Record:
        """One step of training. Raises ContenderFailed."""
        self._send({"do": "step"})
        return Record(**self._receive("a step"))

    def close(self) -> None:
        """Ends the process, in the middle of a step if need be."""
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._stderr):
            with contextlib.suppress(BrokenPipeError):  # a request that nobody read
                stream.close()

    def _send(self, request: dict[str, Any]) -> None:
        with contextlib.suppress(BrokenPipeError):  # _receive() says why
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()

    def _receive(self, what: str) -> dict[str, Any]:
        line = self._process.stdout.readline()
        if not line:
            raise ContenderFailed(self._cause_of_death(what))
        answer = json.loads(line)
        if "error" in answer:
            raise ContenderFailed(answer["error"])
        return answer

    def _cause_of_death(self, what: str) -> str:
        code = self._process.wait()
        if code < 0:
            detail = " (out of memory?)" if code == -signal.SIGKILL else ""
            return f"died of {signal.Signals(-code).name} in {what}{detail}"
        self._stderr.seek(0)
        lines = self._stderr.read().strip().splitlines()
        return f"ended in {what}: {lines[-1] if lines else f'exit code {code}'}"
