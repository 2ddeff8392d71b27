"""``tileformer train``: a language model learns from text, with tileformer's attention inside."""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import shlex
import time
from dataclasses import fields, replace
from pathlib import Path

from tileformer.cli import compare_training
from tileformer.cli import options as option_types
from tileformer.cli.errors import UsageError
from tileformer.cli.progress import note, step
from tileformer.cli.progress_bar import ProgressBar
from tileformer.cli.report import instruction_set
from tileformer.cli.session import require_attention
from tileformer.models.loading import import_libraries
from tileformer.training.checkpoint import load_checkpoint, save_checkpoint
from tileformer.training.interrupt import Interrupt
from tileformer.training.log import Log, Record
from tileformer.training.plot import save_png, smooth, text_plot
from tileformer.training.run_folder import RunFolder, read_settings, refuse_used
from tileformer.training.settings import ATTENTIONS, EXPERTS, Settings
from tileformer.training.setup import Setup, prepare, resolve_for_machine

_CHANGEABLE = ("threads",)  # what a resumed run may do otherwise than before
_NOT_WHEN_COMPARING = ("out", "resume", "save_every", "attn", "fused_loss")


def add_parser(commands) -> None:
    parser = commands.add_parser(
        "train",
        help="train a language model on text",
        description="Trains a model and saves it where `tileformer generate --model` finds it. Packed "
        "sequences, AdamW in fp32, warmup and cosine. Progress goes to stderr.",
        argument_default=argparse.SUPPRESS,  # what is there was given
    )
    default = Settings()
    positive, rate = option_types.positive_int, option_types.non_negative
    model = parser.add_argument_group("model")
    model.add_argument(
        "--model",
        help="llama (default: a small new one), mixtral (a small new one with experts), smollm2 "
        "(SmolLM2-135M continued), smollm2-random (its shape, new), or what generate takes: a folder, GGUF "
        "file or hub id to continue",
    )
    model.add_argument("--layers", type=positive, help="of a new model")
    model.add_argument("--hidden", type=positive, help="size of its hidden states")
    model.add_argument("--heads", type=positive, help="query heads")
    model.add_argument("--kv-heads", type=positive, help="key and value heads; they divide the query heads")
    model.add_argument("--intermediate", type=positive, help="size within the MLP (default: 8/3 of --hidden)")
    model.add_argument("--num-experts", type=positive, help="experts of a layer (mixtral; default: 8)")
    model.add_argument("--top-k", type=positive, help="experts of a token (mixtral; default: 2)")
    model.add_argument("--tokenizer", help="of a new model: as --model of generate (default: SmolLM2's)")
    data = parser.add_argument_group("data")
    data.add_argument("--text", help="file or folder of UTF-8 text (default: Python's standard library)")
    data.add_argument(
        "--sequence-length", type=positive, help=f"tokens of a row (default: {default.sequence_length})"
    )
    data.add_argument("--batch-size", type=positive, help=f"rows of a step (default: {default.batch_size})")
    data.add_argument(
        "--seed", type=option_types.whole, help=f"of weights and order (default: {default.seed})"
    )
    how = parser.add_argument_group("training")
    how.add_argument("--steps", type=positive, help=f"default: {default.steps}; with --compare: 3")
    how.add_argument("--learning-rate", type=rate, help="highest (default: 2e-3 new, 1e-4 continued)")
    how.add_argument("--warmup-steps", type=option_types.whole, help="default: a twentieth of the steps")
    how.add_argument("--weight-decay", type=rate, help=f"of matrices (default: {default.weight_decay})")
    how.add_argument(
        "--clip", type=rate, help=f"largest norm of the gradient; 0: any (default: {default.clip})"
    )
    how.add_argument(
        "--dtype",
        type=option_types.training_dtype,
        help="of the products: bf16, fp32, or auto (default: bf16 where the CPU multiplies it). Weights and "
        "optimizer are fp32 always",
    )
    how.add_argument("--attn", choices=ATTENTIONS, help=f"attention (default: {default.attn})")
    how.add_argument(
        "--experts",
        choices=EXPERTS,
        help="what computes the experts of a model that has some (default: tileformer beside its attention)",
    )
    how.add_argument(
        "--fused-loss",
        action=argparse.BooleanOptionalAction,
        help="loss without a tensor of logits (default: with tileformer's attention)",
    )
    how.add_argument("--gradient-checkpointing", action="store_true", help="less memory, a second forward")
    how.add_argument("--threads", type=positive, help="threads (default: torch's, the cores)")
    kept = parser.add_argument_group("what is kept")
    kept.add_argument("--out", help="folder of the run, new or empty (default: runs/<time>)")
    kept.add_argument("--save-every", type=positive, help="steps between two checkpoints (default: 100)")
    kept.add_argument("--resume", action="store_true", help="go on with the run in --out")
    parser.add_argument(
        "--compare",
        nargs="?",
        const="",
        metavar="ATTN,...",
        help="train nothing: the same steps with each attention in turn, how fast, how much memory; "
        "names of --attn, each also with +fused (default: all)",
    )
    parser.set_defaults(run=run, forwards_options=False)


def run(options: argparse.Namespace) -> int:
    given = vars(options)
    names = [field.name for field in fields(Settings) if field.name in given]
    if "compare" in given:
        if refused := [name for name in _NOT_WHEN_COMPARING if name in given]:
            raise UsageError(f"--compare does not take {', '.join(map(_option, refused))}")
        return compare_training.run({name: given[name] for name in names}, given["compare"])
    if "resume" in given:
        return _resume(given, names)
    settings = Settings(**{name: given[name] for name in names}).with_absolute_paths()
    settings.resolve()  # says what is wrong before anything is waited for
    path = Path(given.get("out") or time.strftime("runs/%Y%m%d-%H%M%S"))
    refuse_used(path)
    with step("loading libraries"):
        import_libraries()
        require_attention(settings.attn)
        settings, reason = resolve_for_machine(settings)
    setup = _prepare(settings, reason)
    folder = RunFolder.create(path, setup.training.settings)
    return _train(folder, setup, given.get("save_every", 100))


def _resume(given: dict, names: list[str]) -> int:
    if "out" not in given:
        raise UsageError("--resume needs --out, the folder of the run")
    path = Path(given["out"])
    settings = read_settings(path)
    asked = replace(settings, **{name: given[name] for name in names}).with_absolute_paths()
    for name in names:
        if name not in _CHANGEABLE and getattr(asked, name) != getattr(settings, name):
            raise UsageError(
                f"{_option(name)} {given[name]}: the run in {path} has {getattr(settings, name)}, and a "
                "resumed run goes on as it began; leave the option out"
            )
    settings = replace(settings, **{name: given[name] for name in names if name in _CHANGEABLE})
    folder = RunFolder(path, settings)
    with step("loading libraries"):
        import_libraries()
        require_attention(settings.attn)
    setup = _prepare(settings, "")
    with step("loading the checkpoint"):
        state = load_checkpoint(path)
        if state is not None:
            setup.training.restore(state)
            del state
    note(f"{path} goes on after step {setup.training.step} of {settings.steps}")
    return _train(folder, setup, given.get("save_every", 100))


def _prepare(settings: Settings, reason: str) -> Setup:
    # transformers draws bars of its own on stderr, across our line.
    with (
        step(f"preparing {settings.model} and its text", quiet_in_pipes=False),
        contextlib.redirect_stderr(io.StringIO()),
    ):
        setup = prepare(settings)
    because = f" ({reason})" if reason else ""
    note(
        f"{settings.model}, {setup.trainee.parameters / 1e6:.1f} M parameters, {settings.dtype}{because}; "
        f"{setup.rows.count} rows of {settings.sequence_length} tokens, {settings.steps} steps go "
        f"{settings.steps * settings.batch_size / setup.rows.count:.2f} times through them"
    )
    return setup


def _train(folder: RunFolder, setup: Setup, save_every: int) -> int:
    training, settings = setup.training, setup.training.settings
    log = Log(folder.log_path, keep_steps=training.step)
    bar = ProgressBar(settings.steps, training.step)
    saved = training.step if training.step else None

    def save() -> None:
        nonlocal saved
        if saved != training.step:
            save_checkpoint(folder.path, training.step, training.state())
            saved = training.step

    with Interrupt(_say_that_it_ends) as interrupt:
        try:
            while training.step < settings.steps and interrupt.signal is None:
                record = training.advance()
                log.append(record)
                bar.show(training.step, f"loss {record.loss:.4f} | {record.tokens_per_second:.0f} tok/s")
                if training.step % save_every == 0:
                    save()
            bar.clear()
            with step(f"saving step {training.step}"):
                save()
                if training.step == settings.steps:
                    folder.save_model(setup.trainee)
        finally:
            bar.clear()
            log.close()
            folder.close()
    if training.step < settings.steps:
        command = f"tileformer train --resume --out {shlex.quote(str(folder.path))}"
        note(f"stopped; step {training.step} of {settings.steps} is saved. Go on with: {command}")
        return 128 + interrupt.signal
    _report(folder, settings, log.records, setup.trainee.experts)
    return 0


def _say_that_it_ends() -> None:
    # In a signal handler: print() might be in the middle of the same stream.
    os.write(2, b"\nending after this step; once more ends at once, without saving\n")


def _report(folder: RunFolder, settings: Settings, records: list[Record], experts: str | None) -> None:
    if not records:  # a finished run whose log is gone
        return
    losses = [record.loss for record in records]
    title = f"{settings.model}, {settings.attn} attention, {settings.dtype}"
    plot = folder.path / "loss.png"
    try:
        drawn = save_png(losses, plot, title)
    except OSError as error:
        note(f"cannot write {plot}: {error.strerror or error}")
        drawn = False
    print(f"losses: {plot}\n" if drawn else text_plot(losses) + "\n")
    averages = smooth(losses)
    speeds = sorted(record.tokens_per_second for record in records)
    print(
        " | ".join(
            [
                f"{len(records)} steps of {settings.batch_size} x {settings.sequence_length} tokens",
                f"loss {losses[0]:.3f} -> {averages[-1]:.3f}",
                f"{speeds[len(speeds) // 2]:.0f} tok/s",
                f"{settings.attn} attention{f', {experts} experts' if experts else ''}"
                f"{', fused loss' if settings.fused_loss else ''}",
                f"ISA {instruction_set(settings.attn)}",
                settings.dtype,
                f"{settings.threads} thread{'s' if settings.threads > 1 else ''}",
                f"peak memory {max(record.peak_rss_mib for record in records):.0f} MiB",
            ]
        )
    )
    print(f'\nIt answers: tileformer generate --model {shlex.quote(str(folder.path))} "..."', flush=True)


def _option(name: str) -> str:
    return "--" + name.replace("_", "-")
