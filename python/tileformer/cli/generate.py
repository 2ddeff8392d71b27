"""``tileformer generate``: a model answers a prompt, with tileformer's attention inside."""

from __future__ import annotations

import argparse
import sys

from tileformer.cli import compare
from tileformer.cli import options as option_types
from tileformer.cli.errors import INTERRUPTED, UsageError
from tileformer.cli.report import closing_line
from tileformer.cli.session import ATTENTIONS, CACHES, Session, cache_kind, new_cache, open_session
from tileformer.models.generation import encode_prompt, generate, stop_tokens
from tileformer.models.sampling import Sampling
from tileformer.models.text_stream import TextStream


def add_parser(commands) -> None:
    parser = commands.add_parser(
        "generate",
        help="let a model answer a prompt",
        description="Streams the answer to stdout, then one line of figures. Progress goes to stderr.",
    )
    parser.add_argument("prompt", nargs="*", help="what to ask; read from stdin if there is none or it is -")
    parser.add_argument(
        "--model", help="Hugging Face folder, GGUF file, or hub id in the local cache (default: SmolLM2)"
    )
    parser.add_argument(
        "--attn", choices=ATTENTIONS, default=ATTENTIONS[0], help="attention (default: %(default)s)"
    )
    parser.add_argument(
        "--cache",
        choices=CACHES,
        help="keys and values in pages, or in transformers' tensors that grow by copying "
        "(default: paged with tileformer's attention)",
    )
    parser.add_argument(
        "--compare",
        action="store_true",
        help="greedy, through every attention in turn: do the texts agree, how fast",
    )
    option_types.add_precision_and_threads(parser)
    parser.add_argument(
        "--max-new-tokens", type=option_types.positive_int, default=256, help="default: %(default)s"
    )
    parser.add_argument("--system", help="system message (default: the chat template's)")
    parser.add_argument(
        "--temperature", type=option_types.temperature, default=0.0, help="0, the default, is greedy"
    )
    parser.add_argument("--top-p", type=option_types.probability, default=1.0, help="default: %(default)s")
    parser.add_argument("--seed", type=int, help="of sampling, for the same answer again")
    parser.set_defaults(run=run, forwards_options=False)


def run(options: argparse.Namespace) -> int:
    prompt = _prompt(options)
    if options.compare and options.temperature != 0:
        raise UsageError("--compare is greedy: --temperature is not allowed with it")
    session = open_session(options, options.attn)
    tokens = encode_prompt(session.loaded.tokenizer, prompt, options.system)
    if options.compare:
        return compare.run(session, tokens, options.max_new_tokens, options.cache)
    return _answer(session, tokens, options)


def _answer(session: Session, prompt: list[int], options: argparse.Namespace) -> int:
    model, tokenizer = session.loaded.model, session.loaded.tokenizer
    text, cache = TextStream(tokenizer), cache_kind(options.cache, model, options.attn)
    generation = generate(
        model,
        prompt,
        max_new_tokens=options.max_new_tokens,
        stop_tokens=stop_tokens(model, tokenizer),
        sampling=Sampling(options.temperature, options.top_p, options.seed),
        on_token=lambda token: print(text.add(token), end="", flush=True),
        cache=new_cache(cache, model, len(prompt) + options.max_new_tokens),
    )
    print(text.finish())
    if generation.interrupted:
        print("(interrupted)", file=sys.stderr)
    line = closing_line(
        generation, attention=options.attn, cache=cache, dtype=session.dtype, threads=session.threads
    )
    print(f"\n{line}", flush=True)
    return INTERRUPTED if generation.interrupted else 0


def _prompt(options: argparse.Namespace) -> str:
    prompt = " ".join(options.prompt)
    if prompt in ("", "-"):
        if prompt == "" and sys.stdin.isatty():
            raise UsageError('no prompt given, e.g.: tileformer generate "Why is the sky blue?"')
        prompt = sys.stdin.read()
    if not prompt.strip():
        raise UsageError("the prompt is empty")
    return prompt
