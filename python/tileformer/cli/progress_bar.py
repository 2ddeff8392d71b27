"""A bar for work of many steps, on stderr."""

from __future__ import annotations

import sys
from time import perf_counter

_WIDTH = 24
_QUIET_SECONDS = 10  # between two lines in a log


class ProgressBar:
    """Shows how far a run is. On a terminal one line that is redrawn; elsewhere a line now and then."""

    def __init__(self, steps: int, done: int = 0) -> None:
        self._steps, self._first = steps, done
        self._start = perf_counter()
        self._told = float("-inf")
        self._stream = sys.stderr

    def show(self, done: int, figures: str) -> None:
        """`done` steps are; `figures` stand beside the bar."""
        now = perf_counter()
        if not self._stream.isatty():
            if done == self._steps or now - self._told >= _QUIET_SECONDS:
                self._told = now
                print(f"step {done}/{self._steps} | {figures}", file=self._stream, flush=True)
            return
        full = _WIDTH * done // max(1, self._steps)
        bar = "=" * full + " " * (_WIDTH - full)
        left = (now - self._start) / max(1, done - self._first) * (self._steps - done)
        text = f"[{bar}] {done}/{self._steps} | {figures} | {_clock(left)} left"
        print(f"\r{text}\x1b[K", end="", file=self._stream, flush=True)

    def clear(self) -> None:
        """Erases the line, so that something else can be said."""
        if self._stream.isatty():
            print("\r\x1b[K", end="", file=self._stream, flush=True)


def _clock(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
