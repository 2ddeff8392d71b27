"""The results file of a run, on disk from the first suite on: an interrupted run keeps what it measured."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

from bench.summary import POINT_SUITES

DEFAULT_OUTPUT = Path("build/bench")


class Record:
    """report: what the file holds, filled by the suites."""

    def __init__(self, path: Path | None, report: dict[str, Any]) -> None:
        """path: None chooses build/bench/<time>-<isa>.json."""
        self.report = report
        self._path, self._started = path, time.strftime("%Y%m%d-%H%M%S")

    def save(self) -> Path | None:
        """Writes the file, whole or not at all. None, and no file, if nothing was measured."""
        points = [point for suite in POINT_SUITES for point in self.report.get(suite, {}).get("points", [])]
        measured = self.report["rows"] or points
        if not measured:
            return None
        if self._path is None:
            self._path = DEFAULT_OUTPUT / f"{self._started}-{measured[0]['isa']}.json"
        self._path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = self._path.with_name(self._path.name + ".part")
        unfinished.write_text(json.dumps(self.report, indent=1) + "\n")
        os.replace(unfinished, self._path)
        return self._path
