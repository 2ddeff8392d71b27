"""``tileformer train --compare``: the same steps with each attention; speed, memory and losses in a table."""

from __future__ import annotations

from typing import Any

from tileformer.cli.progress import note, step
from tileformer.cli.session import require_attention
from tileformer.models.loading import import_libraries
from tileformer.training.compare import Contender, Outcome, compare, default_contenders, parse_contenders
from tileformer.training.settings import Settings
from tileformer.training.setup import prepare_text, resolve_for_machine

_STEPS = 3  # the first allocates, the best of the others counts
_BASE = "sdpa"


def run(given: dict[str, Any], names: str) -> int:
    settings = Settings(**{"steps": _STEPS, **given}).with_absolute_paths()
    settings.resolve()
    contenders = parse_contenders(names) if names else default_contenders()
    with step("loading libraries"):
        import_libraries()
        for contender in contenders:
            require_attention(contender.attention)
        settings, reason = resolve_for_machine(settings)
    with step("preparing the text", quiet_in_pipes=False):
        prepare_text(settings)  # once for all, into the cache
    note(f"{settings.model}, {settings.dtype}{f' ({reason})' if reason else ''}, {settings.threads} threads")

    def say(number: int, contender: Contender) -> None:
        note(f"step {number + 1} of {settings.steps}: {contender.name}")

    outcomes = compare(settings, contenders, say)
    print("\n".join(table(outcomes)))
    print(
        f"\n{settings.batch_size} x {settings.sequence_length} tokens per step, best step of "
        f"{max(1, settings.steps - 1)} in turn | {settings.dtype} | {settings.threads} threads"
    )
    return 1 if any(outcome.failure for outcome in outcomes) else 0


def table(outcomes: list[Outcome]) -> list[str]:
    """A line per contender; ratios and losses are beside sdpa, or the first if it does not take part."""
    base = next((outcome for outcome in outcomes if outcome.contender.name == _BASE), outcomes[0])
    beside = base.contender.name
    lines = [f"{'':<18} {'tok/s':>9} {f'x {beside}':>13} {'peak memory':>12}  last loss, largest difference"]
    for outcome in outcomes:
        name = f"{outcome.contender.name:<18}"
        if outcome.failure:
            lines.append(f"{name} {outcome.failure}")
            continue
        ratio = f"{outcome.best_speed / base.best_speed:.2f}x" if base.best_speed else "-"
        difference = outcome.loss_difference(base)
        agreement = "" if outcome is base or difference is None else f", {difference:.1e}"
        lines.append(
            f"{name} {outcome.best_speed:>9.1f} {ratio:>13} {outcome.peak_rss_mib:>8.0f} MiB  "
            f"{outcome.losses[-1]:.4f}{agreement}"
        )
    return lines
