"""``tileformer serve-bench``: many prompts of mixed length through continuous batching, and how fast."""

from __future__ import annotations

import argparse
import json
import random
import sys
from pathlib import Path
from time import perf_counter
from typing import Any

from tileformer.cli import options as option_types
from tileformer.cli.errors import INTERRUPTED, UsageError
from tileformer.cli.progress_bar import ProgressBar
from tileformer.cli.session import Session, open_session

_QUICK = {"prompts": 6, "prompt_tokens": (4, 24), "new_tokens": (2, 8)}


def add_parser(commands) -> None:
    parser = commands.add_parser(
        "serve-bench",
        help="time many prompts of mixed length in continuous batching",
        description="Random prompts, all there at the beginning, through transformers' scheduler and "
        "tileformer's attention over pages. A table to stdout; progress goes to stderr.",
    )
    parser.add_argument(
        "--model", help="Hugging Face folder, GGUF file, or hub id in the local cache (default: SmolLM2)"
    )
    parser.add_argument("--prompts", type=option_types.positive_int, default=32, help="default: %(default)s")
    parser.add_argument(
        "--prompt-tokens",
        type=option_types.span,
        default=(16, 512),
        metavar="FROM:TO",
        help="length of a prompt, drawn evenly (default: 16:512)",
    )
    parser.add_argument(
        "--new-tokens",
        type=option_types.span,
        default=(16, 128),
        metavar="FROM:TO",
        help="length of an answer; no stop token ends it (default: 16:128)",
    )
    parser.add_argument(
        "--common-tokens",
        type=option_types.whole,
        default=0,
        help="tokens with which every prompt begins, beside its own (default: %(default)s)",
    )
    parser.add_argument(
        "--max-tokens",
        type=option_types.positive_int,
        default=32768,
        help="of the cache (default: %(default)s)",
    )
    parser.add_argument(
        "--page-size",
        type=option_types.positive_int,
        default=64,
        help="tokens of a page (default: %(default)s)",
    )
    parser.add_argument(
        "--max-batch-tokens",
        type=option_types.positive_int,
        default=512,
        help="of a step (default: %(default)s)",
    )
    option_types.add_precision_and_threads(parser)
    parser.add_argument(
        "--seed", type=option_types.whole, default=0, help="of lengths and prompts (default: 0)"
    )
    parser.add_argument("--quick", action="store_true", help="a few short prompts: does it work")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures there")
    parser.set_defaults(run=run, forwards_options=False)


def run(options: argparse.Namespace) -> int:
    if options.quick:
        vars(options).update(_QUICK)
    if options.page_size % 16:
        raise UsageError(f"--page-size is {options.page_size}; allowed are multiples of 16")
    if options.json is not None and not options.json.absolute().parent.is_dir():
        raise UsageError(f"--json {options.json}: there is no such folder")
    session = open_session(options, "tileformer")
    prompts, limits = _requests(options, session.loaded.model.config.get_text_config().vocab_size)
    report = _serve(session, prompts, limits, options)
    print(_table(report))
    if options.json is not None:
        options.json.write_text(json.dumps(report, indent=1) + "\n")
    return INTERRUPTED if report["interrupted"] else 0


def _requests(options: argparse.Namespace, vocabulary: int) -> tuple[list[list[int]], list[int]]:
    draw = random.Random(options.seed)

    def tokens(count: int) -> list[int]:
        return [draw.randrange(vocabulary) for _ in range(count)]

    common = tokens(options.common_tokens)
    prompts = [common + tokens(draw.randint(*options.prompt_tokens)) for _ in range(options.prompts)]
    return prompts, [draw.randint(*options.new_tokens) for _ in prompts]


def _serve(
    session: Session, prompts: list[list[int]], limits: list[int], options: argparse.Namespace
) -> dict[str, Any]:
    import tileformer
    from tileformer.integrations.continuous_batching import ContinuousBatching

    server = ContinuousBatching(
        session.loaded.model,
        max_tokens=options.max_tokens,
        page_size=options.page_size,
        max_batch_tokens=options.max_batch_tokens,
        do_sample=False,
    )
    bar, done, made, interrupted = ProgressBar(len(prompts)), 0, 0, False
    requests: list[str] = []
    start = perf_counter()
    try:
        with server:
            try:
                for prompt, limit in zip(prompts, limits):
                    requests.append(server.submit(prompt, max_new_tokens=limit, eos_token_id=-1))
            except ValueError as error:
                raise UsageError(str(error)) from error
            for _, new, finished in server.stream():
                made, done = made + len(new), done + finished
                bar.show(done, f"{made / (perf_counter() - start):.1f} tok/s")
    except KeyboardInterrupt:
        interrupted = True
        print("\n(interrupted)", file=sys.stderr)
    seconds = perf_counter() - start
    bar.clear()
    answers = [server.answer(request) for request in requests]
    if errors := [answer.error for answer in answers if answer.error is not None and not interrupted]:
        raise RuntimeError(f"{len(errors)} of {len(answers)} requests failed: {errors[0]}")
    gaps = [gap for answer in answers for gap in answer.seconds_per_token]
    first = [answer.times[0] for answer in answers if answer.times]
    pages = server.pages
    return {
        "model": session.loaded.model.config.model_type,
        "dtype": session.dtype,
        "threads": session.threads,
        "isa": tileformer.isa(),
        "interrupted": interrupted,
        "requests": len(prompts),
        "finished": done,
        "prompt_tokens": sum(len(prompt) for prompt in prompts),
        "new_tokens": made,
        "seconds": seconds,
        "new_tokens_per_second": made / seconds,
        "tokens_per_second": (made + sum(len(a.prompt) for a in answers if a.times)) / seconds,
        "first_token_seconds": _percentiles(first),
        "seconds_per_token": _percentiles(gaps),
        "page_size": options.page_size,
        "pages": pages.num_pages if pages else 0,
        "peak_pages": pages.peak_pages if pages else 0,
    }


def _percentiles(values: list[float]) -> dict[str, float | None]:
    """The value that a share of all does not exceed; None without values."""
    ordered = sorted(values)
    return {
        f"p{percent}": ordered[min(len(ordered) - 1, len(ordered) * percent // 100)] if ordered else None
        for percent in (50, 99)
    }


def _table(report: dict[str, Any]) -> str:
    def span(figures: dict[str, float | None]) -> str:
        return ", ".join(
            f"{name} {'none' if value is None else f'{1000 * value:.0f} ms'}"
            for name, value in figures.items()
        )

    speed, with_prompts = report["new_tokens_per_second"], report["tokens_per_second"]
    threads = f"{report['threads']} thread{'s' if report['threads'] > 1 else ''}"
    unit = f"ISA {report['isa']}, {report['dtype']}, {threads}"
    share = 100 * report["peak_pages"] / max(1, report["pages"])
    rows = {
        "requests": f"{report['finished']} of {report['requests']} finished in {report['seconds']:.1f} s",
        "tokens": f"{report['prompt_tokens']} prompt + {report['new_tokens']} new",
        "tokens/s": f"{speed:.1f} new, {with_prompts:.1f} with prompts",
        "time to first token": span(report["first_token_seconds"]),
        "time per token": span(report["seconds_per_token"]),
        "cache pages used": f"{report['peak_pages']} of {report['pages']} at most ({share:.0f} %), "
        f"{report['page_size']} tokens each",
        "computed by": f"tileformer attention, {unit}",
    }
    return "\n".join(f"{name:<20} {value}" for name, value in rows.items())
