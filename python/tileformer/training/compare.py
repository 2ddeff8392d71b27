"""The same steps with each attention: speed, peak memory, and whether the losses agree.

Each contender is a process of its own, since memory is measured by the most that a process ever held. They
take turns, a step each: what else happens on the machine hits all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from tileformer.training import fused_loss
from tileformer.training.compare_process import CompareProcess, ContenderFailed
from tileformer.training.errors import TrainingError
from tileformer.training.settings import ATTENTIONS, Settings

_FUSED = "+fused"


@dataclass(frozen=True)
class Contender:
    """An attention, with or without the fused loss; named "sdpa" or "tileformer+fused"."""

    attention: str
    fused: bool

    @property
    def name(self) -> str:
        return self.attention + (_FUSED if self.fused else "")


@dataclass
class Outcome:
    """What a contender did: a loss, a speed in tokens/s and a peak in MiB per step; or why it stopped."""

    contender: Contender
    losses: list[float] = field(default_factory=list)
    speeds: list[float] = field(default_factory=list)
    peak_rss_mib: float = 0.0
    failure: str = ""

    @property
    def best_speed(self) -> float:
        """Of the steps after the first, which also allocates; other work on the machine only slows down."""
        return max(self.speeds[1:] or self.speeds, default=0.0)

    def loss_difference(self, other: Outcome) -> float | None:
        """The largest |difference| of a step's losses; None if one of the two has none."""
        pairs = list(zip(self.losses, other.losses))
        return max(abs(a - b) for a, b in pairs) if pairs else None


def parse_contenders(text: str) -> list[Contender]:
    """Contenders from names joined by commas. Raises TrainingError."""
    contenders = []
    for name in text.split(","):
        attention = name.removesuffix(_FUSED)
        if attention not in ATTENTIONS:
            raise TrainingError(
                f"--compare: {name!r} given; allowed are {', '.join(ATTENTIONS)}, each also with {_FUSED}"
            )
        if name.endswith(_FUSED):
            fused_loss.require()
        contenders.append(Contender(attention, name.endswith(_FUSED)))
    if len(set(contenders)) < len(contenders):
        raise TrainingError(f"--compare: {text!r} names one twice")
    return contenders


def default_contenders() -> list[Contender]:
    """Every attention, and ours with the fused loss where there is one."""
    contenders = [Contender(attention, False) for attention in reversed(ATTENTIONS)]
    return [*contenders, Contender(ATTENTIONS[0], True)] if fused_loss.is_available() else contenders


def compare(
    settings: Settings, contenders: list[Contender], on_step: Callable[[int, Contender], None]
) -> list[Outcome]:
    """Runs `settings.steps` steps of each contender in turn; `on_step` hears of each before it begins.

    The settings are resolved. A contender that cannot go on leaves the others alone. Raises TrainingError if
    none of them can start.
    """
    outcomes = [Outcome(contender) for contender in contenders]
    with _processes(settings, outcomes) as processes:
        for outcome, process in zip(outcomes, processes):
            _unless_failed(outcome, process.open)
        if all(outcome.failure for outcome in outcomes):
            raise TrainingError(outcomes[0].failure)
        for step in range(settings.steps):
            for outcome, process in zip(outcomes, processes):
                if not outcome.failure:
                    on_step(step, outcome.contender)
                    _unless_failed(outcome, lambda o=outcome, p=process: _step(o, p))
    return outcomes


def _step(outcome: Outcome, process: CompareProcess) -> None:
    record = process.step()
    outcome.losses.append(record.loss)
    outcome.speeds.append(record.tokens_per_second)
    outcome.peak_rss_mib = record.peak_rss_mib


def _unless_failed(outcome: Outcome, action: Callable[[], None]) -> None:
    try:
        action()
    except ContenderFailed as failure:
        outcome.failure = str(failure)


@contextmanager
def _processes(settings: Settings, outcomes: list[Outcome]) -> Iterator[list[CompareProcess]]:
    """Starts all of them at once: most of a start is reading libraries."""
    started: list[CompareProcess] = []
    try:
        for outcome in outcomes:
            contender = outcome.contender
            started.append(
                CompareProcess(replace(settings, attn=contender.attention, fused_loss=contender.fused))
            )
        yield started
    finally:
        for process in started:
            process.close()
