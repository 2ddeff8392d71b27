"""Training steps of SmolLM2's shape, packed rows: tokens/s and peak resident memory of each attention."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

import tileformer
from bench.memory_suite import available_bytes
from bench.row import Verdict
from tileformer.models.loading import import_libraries
from tileformer.training.compare import Contender, Outcome, compare, default_contenders
from tileformer.training.errors import TrainingError
from tileformer.training.settings import SMOLLM2_RANDOM, Settings
from tileformer.training.setup import prepare_text, resolve_for_machine
from tileformer.training.text import standard_library

BASE, FUSED, PEER = "tileformer", "tileformer+fused", "sdpa"
SEQUENCES = (2048, 4096, 8192)
FEW_LAYERS, ALL_LAYERS = 2, 30
# Eager attention is not started beyond this, nor beyond half of what the machine has free.
MOST_EAGER_BYTES = 16 << 30
# The largest difference of a step's losses from sdpa's, by the dtype of the products.
LOSS_TOLERANCE = {"float32": 1e-3, "bfloat16": 2e-2}


def cases(full: bool, layers: int | None, folder: Path) -> list[Settings]:
    """Rows of the standard library as training packs them; with `full` also rows of one endless document."""
    texts = [None, str(_one_document(folder))] if full else [None]
    return [
        Settings(
            model=SMOLLM2_RANDOM,
            layers=layers or (ALL_LAYERS if full else FEW_LAYERS),
            text=text,
            sequence_length=sequence,
            batch_size=1,
            steps=3 if full else 2,
        )
        for text, sequence in itertools.product(texts, SEQUENCES)
    ]


def run(settings: list[Settings], notes: list[str]) -> Iterator[list[dict[str, Any]]]:
    """The points of each case as they are measured; what is left out goes to notes."""
    import_libraries()
    for case in settings:
        case, _ = resolve_for_machine(case)
        prepare_text(case)  # into the cache, once for all
        contenders = [contender for contender in default_contenders() if fits(case, contender, notes)]
        try:
            outcomes = compare(case, contenders, lambda step, contender: None)
        except TrainingError as error:
            notes.append(f"training: {case.sequence_length} tokens: {error}")
            continue
        yield [_point(case, outcome) for outcome in outcomes]


def fits(case: Settings, contender: Contender, notes: list[str]) -> bool:
    """Whether it is sane to start: eager keeps a layer's weights [heads, seq, seq] for its backward."""
    scores = case.batch_size * case.heads * case.sequence_length**2 * 4
    needed = (case.layers + 4) * scores
    if contender.attention != "eager" or needed < min(MOST_EAGER_BYTES, available_bytes() / 2):
        return True
    notes.append(f"training: eager not started at {case.sequence_length} tokens: about {needed >> 30} GiB")
    return False


def _point(case: Settings, outcome: Outcome) -> dict[str, Any]:
    return {
        "contender": outcome.contender.name,
        "settings": case.to_json(),
        "isa": tileformer.isa(),
        "torch_isa": torch.backends.cpu.get_cpu_capability().lower(),
        "tokens_per_second": outcome.best_speed,
        "peak_rss_mib": outcome.peak_rss_mib,
        "losses": outcome.losses,
        "failure": outcome.failure,
    }


def lines_of(points: list[dict[str, Any]]) -> list[str]:
    """The points of one case as text; ratios are to sdpa."""
    settings = points[0]["settings"]
    kind = "one document" if settings["text"] else "packed"
    shape = f"{settings['sequence_length']} tokens, {kind}, {settings['layers']} layers"
    lines = [f"{shape}, {settings['dtype']}, {settings['threads']} threads"]
    peer = _named(points, PEER)
    for point in points:
        line = f"  {point['contender']:<18}"
        if point["failure"]:
            lines.append(f"{line} {point['failure']}")
            continue
        line += f" {point['tokens_per_second']:>8.1f} tok/s {point['peak_rss_mib']:>8.0f} MiB"
        if peer is not None and point is not peer:
            line += f"  {_speed(point, peer):.2f}x {PEER}'s speed, {_memory(point, peer):.2f}x its memory"
        lines.append(f"{line}, loss {point['losses'][-1]:.4f}")
    return lines


# (contender, tokens) -> (times the peer's tokens/s at least, times its peak memory at most).
AGAINST_SDPA = {
    (BASE, 4096): (1.3, 1.0),
    (BASE, 8192): (1.5, 1.0),
    (FUSED, 4096): (1.4, 0.7),
    (FUSED, 8192): (1.5, 0.7),
}
AGAINST_EAGER = {(BASE, 4096): (2.5, 0.45), (FUSED, 4096): (2.5, 0.45)}


def judge(points: list[dict[str, Any]]) -> list[Verdict]:
    """At each length: speed and memory against sdpa and eager, and the same losses."""
    verdicts = []
    for point in points:
        if point["failure"] or point["contender"] not in (BASE, FUSED):
            continue
        tokens = point["settings"]["sequence_length"]
        at = f"{point['contender']} at {tokens}"
        for name, bars in ((PEER, AGAINST_SDPA), ("eager", AGAINST_EAGER)):
            peer = _named(points, name)
            speed, memory = bars.get((point["contender"], tokens), (1.0, 1.0))
            if peer is not None:
                verdicts += [
                    Verdict(f"{at}: times {name}'s tokens/s", _speed(point, peer), ">=", speed),
                    Verdict(f"{at}: times {name}'s peak memory", _memory(point, peer), "<=", memory),
                ]
        if (peer := _named(points, PEER)) is not None:
            difference = max(abs(a - b) for a, b in zip(point["losses"], peer["losses"]))
            tolerance = LOSS_TOLERANCE[point["settings"]["dtype"]]
            verdicts.append(Verdict(f"{at}: loss difference from {PEER}", difference, "<=", tolerance))
    return verdicts


def _named(points: list[dict[str, Any]], name: str) -> dict[str, Any] | None:
    return next((p for p in points if p["contender"] == name and not p["failure"]), None)


def _speed(point: dict[str, Any], peer: dict[str, Any]) -> float:
    return point["tokens_per_second"] / peer["tokens_per_second"]


def _memory(point: dict[str, Any], peer: dict[str, Any]) -> float:
    return point["peak_rss_mib"] / peer["peak_rss_mib"]


def _one_document(folder: Path) -> Path:
    """The standard library as one file: no border falls into its rows."""
    path = folder / "one-document.txt"
    folder.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(standard_library()))
    return path
