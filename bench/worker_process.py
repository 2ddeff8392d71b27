"""The parent's side of a worker: start it, ask it, survive its death."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from bench.contenders import Unavailable

ROOT = Path(__file__).resolve().parent.parent


class WorkerProcess:
    """One contender in its own process. Raises Unavailable when it cannot be opened."""

    def __init__(self, contender: str, isa: str | None = None) -> None:
        path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
        environment = {**os.environ, "PYTHONPATH": path}
        if isa is not None:
            environment["TILEFORMER_ISA"] = isa
        self.contender = contender
        self._stderr = tempfile.TemporaryFile(mode="w+")  # noqa: SIM115  (closed in close)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.worker"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._stderr, text=True, env=environment,
        )  # fmt: skip
        try:
            self.description = self.ask("open", contender=contender)
        except Unavailable:
            self.close()
            raise
        if "unavailable" in self.description:
            self.close()
            raise Unavailable(self.description["unavailable"])

    def ask(self, do: str, **arguments: Any) -> dict[str, Any]:
        """One request, one answer. Raises Unavailable if the process died."""
        try:
            self._process.stdin.write(json.dumps({"do": do, **arguments}) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            raise Unavailable(self._cause_of_death(do))
        return json.loads(line)

    def close(self) -> None:
        """Ends the process."""
        with contextlib.suppress(BrokenPipeError):  # an interrupt of the terminal ended it already
            self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()
        self._stderr.close()

    def _cause_of_death(self, request: str) -> str:
        code = self._process.wait()
        if code < 0:
            name = signal.Signals(-code).name
            detail = {"SIGILL": " (needs an instruction that this CPU lacks)", "SIGKILL": " (out of memory?)"}
            return f"died of {name} in '{request}'{detail.get(name, '')}"
        self._stderr.seek(0)
        lines = self._stderr.read().strip().splitlines()
        return f"ended in '{request}': {lines[-1] if lines else f'exit code {code}'}"
