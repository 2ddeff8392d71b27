"""Ctrl-C and SIGTERM end a run after the step at hand, so that it can be saved."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType


class Interrupt:
    """While it is entered, the first SIGINT or SIGTERM sets `signal`, a second raises KeyboardInterrupt."""

    def __init__(self, on_first: Callable[[], None]) -> None:
        self.signal: int | None = None
        self._on_first = on_first
        self._before: dict[int, object] = {}

    def __enter__(self) -> Interrupt:
        if threading.current_thread() is not threading.main_thread():
            return self  # Python lets only the main thread handle signals
        for number in (signal.SIGINT, signal.SIGTERM):
            if signal.getsignal(number) is not signal.SIG_IGN:  # ignored by nohup, say: so it stays
                self._before[number] = signal.signal(number, self._received)
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _received(self, number: int, frame: FrameType | None) -> None:
        if self.signal is not None:
            raise KeyboardInterrupt
        self.signal = number
        self._on_first()
