"""The losses of a run: a PNG where matplotlib is installed, else a few lines of text."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

_WIDTH, _HEIGHT = 64, 12
_SMOOTHING = 0.9  # of the moving average that is drawn over the single steps


def has_matplotlib() -> bool:
    return importlib.util.find_spec("matplotlib") is not None


def save_png(losses: Sequence[float], path: Path, title: str) -> bool:
    """Draws the losses of steps 1, 2, ...; returns False, and does nothing, without matplotlib."""
    if not has_matplotlib():
        return False
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4))
    axes = figure.subplots()
    steps = range(1, len(losses) + 1)
    axes.plot(steps, losses, color="#b9b2a6", linewidth=0.8, label="step")
    axes.plot(steps, smooth(losses), color="#0b6e4f", label="moving average")
    axes.set_xlabel("step")
    axes.set_ylabel("loss, nats per token")
    axes.set_title(title, fontsize=9)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    figure.tight_layout()
    partial = path.with_name(f".{path.name}.partial")
    figure.savefig(partial, format="png", dpi=120)
    os.replace(partial, path)
    return True


def text_plot(losses: Sequence[float], width: int = _WIDTH, height: int = _HEIGHT) -> str:
    """The losses as characters: a column is the mean of its share of the steps."""
    columns = min(width, len(losses))
    if columns == 0:
        return ""
    edges = [round(i * len(losses) / columns) for i in range(columns + 1)]
    means = [sum(losses[a:b]) / (b - a) for a, b in pairwise(edges)]
    low, high = min(means), max(means)
    scale = (height - 1) / (high - low) if high > low else 0.0
    rows = [round((high - mean) * scale) for mean in means]
    lines = []
    for row in range(height):
        label = f"{high:8.3f}" if row == 0 else f"{low:8.3f}" if row == height - 1 else " " * 8
        lines.append(f"{label} |{''.join('*' if at == row else ' ' for at in rows).rstrip()}")
    lines.append(f"{'':8} +{'-' * columns}")
    lines.append(f"{'':10}{'step 1':<{max(1, columns - len(str(len(losses))))}}{len(losses)}")
    return "\n".join(lines)


def smooth(losses: Sequence[float]) -> list[float]:
    """Exponential moving average, without the pull of a start value."""
    averages, total, weight = [], 0.0, 0.0
    for loss in losses:
        total = _SMOOTHING * total + (1 - _SMOOTHING) * loss
        weight = _SMOOTHING * weight + (1 - _SMOOTHING)
        averages.append(total / weight)
    return averages
