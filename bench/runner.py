"""Measures rows: every contestant of a row takes short turns, again and again, and its best turn counts."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import Any

from bench.contenders import Unavailable
from bench.row import BASE, Entry, Result, Row
from bench.worker_process import WorkerProcess
from bench.yardsticks import Yardsticks

TURN_SECONDS = 0.15  # a longer call takes one turn
MIN_ROUNDS, MAX_ROUNDS = 2, 12
LONG_CALL = 10.0  # seconds: whoever takes so long for a call gets one turn


@dataclass(frozen=True)
class _Seat:
    """Which process a contestant sits in: a contender, with tileformer's ISA forced or not."""

    contender: str
    isa: str | None = None

    def __str__(self) -> str:
        return self.contender if self.isa is None else f"{self.contender} ({self.isa})"


def _rate(entry: Entry, yardsticks: Yardsticks) -> None:
    """What its best time means, by its work and its traffic."""
    case = entry.case
    if case.flops:
        entry.gflops = case.flops / entry.seconds / 1e9
        if yardsticks.peak:
            entry.percent = 100 * entry.gflops / (yardsticks.peak * case.threads)
    if case.traffic_bytes:
        entry.gb_per_s = case.traffic_bytes / entry.seconds / 1e9
        bandwidth = yardsticks.bandwidth(case.threads)
        entry.percent_of_bandwidth = 100 * entry.gb_per_s / bandwidth if bandwidth else None


class Runner:
    """Holds one worker per seat, started when first needed.

    row_seconds: how long the turns of one row may go on (two rounds at least). peers: who may take part.
    """

    def __init__(self, row_seconds: float, peers: list[str]) -> None:
        self.row_seconds = row_seconds
        self.peers = peers
        self.notes: list[str] = []  # what was skipped, and why, each once
        self.descriptions: dict[str, dict[str, str]] = {}  # of everyone that ran
        self._workers: dict[_Seat, WorkerProcess | None] = {}  # None: cannot run here

    def measure(self, suite: str, row: Row) -> Result | None:
        """None if tileformer itself cannot run the row; a note says why."""
        seats: dict[str, _Seat] = {}
        entries: dict[str, Entry] = {}
        for name, seat, case in self._contestants(row):
            answer = self._ask(seat, case.request, key=name, case=case.to_json())
            if answer is None:
                continue
            if "unsupported" in answer:
                self.note(f"{seat}: {case.label}: {answer['unsupported']}")
                continue
            seats[name] = seat
            entries[name] = Entry(case, float("inf"), 0, answer["error"], 0.0, None)
            entries[name].cache_bytes = answer.get("cache_bytes")
        yardsticks = self._take_turns(row, seats, entries) if BASE in entries else None
        for seat in set(seats.values()):
            self._ask(seat, "forget")
        if BASE not in entries:
            return None
        for entry in entries.values():
            _rate(entry, yardsticks)
        isa = self.descriptions[str(_Seat(BASE, row.isa))]["isa"]
        result = Result(suite, row, isa, yardsticks.peak, yardsticks.bandwidth(row.case.threads), entries)
        result.verdicts = [verdict for bar in row.bars if (verdict := bar.judge(result)) is not None]
        return result

    def note(self, text: str) -> None:
        """Remembers what was skipped."""
        if text not in self.notes:
            self.notes.append(text)

    def close(self) -> None:
        """Ends all workers."""
        for worker in self._workers.values():
            if worker is not None:
                worker.close()
        self._workers.clear()

    def _contestants(self, row: Row) -> list[tuple[str, _Seat, Any]]:
        ours = _Seat(BASE, row.isa)
        if self._worker(ours) is None:
            return []
        peers = [peer for peer in row.peers if peer in self.peers]
        return (
            [(BASE, ours, row.case)]
            + [(peer, _Seat(peer), row.case) for peer in peers]
            + [(name, ours, case) for name, case in row.variants.items()]
        )

    def _take_turns(self, row: Row, seats: dict[str, _Seat], entries: dict[str, Entry]) -> Yardsticks:
        """Fills best time and calls of every entry; returns what the machine reached meanwhile."""

        def ask_ours(do: str, **arguments: Any) -> dict[str, Any] | None:
            return self._ask(seats[BASE], do, **arguments)

        yardsticks, start = Yardsticks(ask_ours, [entry.case for entry in entries.values()]), time.monotonic()
        for turn in range(MAX_ROUNDS):
            if turn >= MIN_ROUNDS and time.monotonic() - start > self.row_seconds:
                break
            for name in [name for name, entry in entries.items() if not LONG_CALL < entry.seconds < math.inf]:
                answer = self._ask(seats[name], "time", key=name, seconds=TURN_SECONDS)
                if answer is None:  # its process died: what it did before does not count
                    del entries[name]
                    continue
                entries[name].seconds = min(entries[name].seconds, answer["best"])
                entries[name].calls += answer["calls"]
            yardsticks.measure()
        return yardsticks

    def _worker(self, seat: _Seat) -> WorkerProcess | None:
        if seat not in self._workers:
            try:
                self._workers[seat] = WorkerProcess(seat.contender, seat.isa)
                self.descriptions[str(seat)] = self._workers[seat].description
            except Unavailable as reason:
                self._workers[seat] = None
                self.note(f"{seat} skipped: {reason}")
        return self._workers[seat]

    def _ask(self, seat: _Seat, do: str, **arguments: Any) -> dict[str, Any] | None:
        """None if the worker cannot run here or dies; one that dies is started anew for the next row."""
        worker = self._worker(seat)
        if worker is None:
            return None
        try:
            return worker.ask(do, **arguments)
        except Unavailable as reason:
            del self._workers[seat]
            case = arguments.get("case", {})
            self.note(f"{seat}: {reason} {case or ''}".rstrip())
            return None
