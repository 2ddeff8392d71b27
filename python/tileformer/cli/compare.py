"""``tileformer generate --compare``: one prompt through every attention, texts and speeds side by side."""

from __future__ import annotations

from tileformer.cli.progress import step
from tileformer.cli.report import instruction_set, peak_memory_mib
from tileformer.cli.session import ATTENTIONS, Session, cache_kind, new_cache
from tileformer.models.generation import Generation, generate, stop_tokens

# Each attention runs this often, in turn, and its best figures count: other work on the machine only ever
# slows down.
_ROUNDS = 2


def run(session: Session, prompt: list[int], max_new_tokens: int, cache: str | None) -> int:
    """cache: what tileformer's attention reads; the others have the model's own."""
    model, tokenizer = session.loaded.model, session.loaded.tokenizer
    ours_reads = cache_kind(cache, model, ATTENTIONS[0])
    runs: dict[str, list[Generation]] = {attention: [] for attention in ATTENTIONS}
    for turn in range(_ROUNDS):
        for attention in ATTENTIONS:
            model.set_attn_implementation(attention)
            kind = ours_reads if attention == ATTENTIONS[0] else "dynamic"
            with step(f"{attention}, run {turn + 1} of {_ROUNDS}"):
                generation = generate(
                    model,
                    prompt,
                    max_new_tokens=max_new_tokens,
                    stop_tokens=stop_tokens(model, tokenizer),
                    cache=new_cache(kind, model, len(prompt) + max_new_tokens),
                )
            if generation.interrupted:
                raise KeyboardInterrupt
            runs[attention].append(generation)

    ours = runs[ATTENTIONS[0]]
    print(tokenizer.decode(ours[0].tokens, skip_special_tokens=True))
    print()
    for attention, generations in runs.items():
        print(_row(attention, generations, ours))
    print(
        f"\n{len(prompt)} prompt tokens, best of {_ROUNDS} runs in turn | {ours_reads} cache for "
        f"tileformer, dynamic for the others | {session.dtype} | "
        f"{session.threads} threads | peak memory {peak_memory_mib():.0f} MiB"
    )
    return 0


def _row(attention: str, generations: list[Generation], ours: list[Generation]) -> str:
    prefill, decode = _best(generations)
    row = (
        f"{attention:<10}  prefill {prefill:8.1f} tok/s  decode {decode:6.1f} tok/s  "
        f"{len(generations[0].tokens)} new tokens  ISA {instruction_set(attention)}"
    )
    if generations is ours:
        return row
    our_prefill, our_decode = _best(ours)
    ratios = f"prefill {_ratio(our_prefill, prefill)}, decode {_ratio(our_decode, decode)}"
    agreement = _agreement(ours[0].tokens, generations[0].tokens)
    return f"{row}\n{'':<12}tileformer / {attention}: {ratios}; {agreement}"


def _best(generations: list[Generation]) -> tuple[float, float]:
    return max(g.prefill_speed for g in generations), max(g.decode_speed for g in generations)


def _ratio(a: float, b: float) -> str:
    return f"{a / b:.2f}x" if a and b else "-"


def _agreement(a: list[int], b: list[int]) -> str:
    if a == b:
        return f"texts agree ({len(a)} tokens)"
    same = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    return f"texts differ: the first {same} tokens agree"
