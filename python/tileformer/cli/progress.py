"""Says on stderr what a command is waiting for. stdout holds nothing but the result."""

import contextlib
import sys
import threading
from collections.abc import Iterator
from time import perf_counter

_TICK_SECONDS = 0.2


@contextlib.contextmanager
def step(what: str, *, quiet_in_pipes: bool = True) -> Iterator[None]:
    """Shows ``what`` while the body runs. On a terminal: one line with the seconds so far, gone at the end.

    Elsewhere one line before and nothing after, and only if ``quiet_in_pipes`` is off: for waits so long that
    a log should mention them.
    """
    stream = sys.stderr  # the body may redirect it
    if not stream.isatty():
        if not quiet_in_pipes:
            print(f"{what} ...", file=stream, flush=True)
        yield
        return

    done, start = threading.Event(), perf_counter()

    def tick() -> None:
        while True:
            print(f"\r{what} ... {perf_counter() - start:.1f} s ", end="", file=stream, flush=True)
            if done.wait(_TICK_SECONDS):
                return

    ticker = threading.Thread(target=tick, daemon=True)
    ticker.start()
    try:
        yield
    finally:
        done.set()
        ticker.join()
        print("\r\x1b[K", end="", file=stream, flush=True)  # back to the first column, erase the line


def note(text: str) -> None:
    """A fact about the run that is not part of its result."""
    print(text, file=sys.stderr, flush=True)
