"""Decode steps of SmolLM2-135M's shape in pages, beside sdpa with DynamicCache; a prompt in shared pages."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Any

import torch

import tileformer
from bench.memory_suite import available_bytes
from bench.row import Verdict
from tileformer.models.loading import import_libraries
from tileformer.models.precision import resolve_dtype

if TYPE_CHECKING:
    from transformers import Cache, PreTrainedModel

OURS, PEER = "tileformer+pages", "sdpa+dynamic"
ATTENTION = {OURS: "tileformer", PEER: "sdpa"}
ALL_LAYERS = 30
VOCABULARY = 49152
WARM_STEPS = 1
# The largest difference of logits relative to the largest logit, by dtype: 30 layers of rounding.
LOGITS_TOLERANCE = {"float32": 1e-3, "bfloat16": 5e-2}


@dataclass(frozen=True)
class Case:
    """Decode steps of `batch` sequences that hold `context` tokens each; shared: in the same pages."""

    batch: int
    context: int
    steps: int
    layers: int = ALL_LAYERS
    shared: bool = False

    def cache_bytes(self, itemsize: int) -> int:
        """Keys and values of 3 kv heads of dim 64."""
        return self.layers * 2 * 3 * 64 * itemsize * self.batch * (self.context + self.steps + WARM_STEPS)


def cases(full: bool, layers: int | None) -> list[Case]:
    layers = layers or ALL_LAYERS
    steps = 24 if full else 8
    rows = [Case(1, context, steps, layers) for context in (128, 2048, 8192)]
    rows += [Case(32, context, steps // 2, layers) for context in (128, 2048)]
    if full:
        rows.append(Case(32, 8192, 4, layers))
    return [*rows, Case(32, 2048, steps // 2, layers, shared=True)]


def run(rows: list[Case], threads: int | None, notes: list[str]) -> Iterator[list[dict[str, Any]]]:
    """The points of each case as they are measured; what does not fit into memory goes to notes."""
    import_libraries()
    dtype, _ = resolve_dtype("auto")
    before = torch.get_num_threads()
    torch.set_num_threads(threads or before)
    models: dict[int, PreTrainedModel] = {}
    try:
        for case in rows:
            # Both caches, and the peer's layer that is copied.
            needed = 2 * case.cache_bytes(dtype.itemsize)
            if needed > 0.8 * available_bytes():
                notes.append(f"serving: {case.batch} x {case.context} not started: about {needed >> 30} GiB")
                continue
            if case.layers not in models:
                models[case.layers] = _model(case.layers, dtype)
            with torch.inference_mode():
                yield _measure(models[case.layers], case)
    finally:
        torch.set_num_threads(before)


def _model(layers: int, dtype: torch.dtype) -> PreTrainedModel:
    """Random weights: what they are has no influence on time."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=layers,
        num_attention_heads=9,
        num_key_value_heads=3,
        max_position_embeddings=16384,
        rope_parameters={"rope_type": "default", "rope_theta": 100000.0},
        tie_word_embeddings=True,
    )
    return LlamaForCausalLM(config).to(dtype).eval()


def _filled(model: PreTrainedModel, case: Case, contender: str) -> Cache:
    """A cache that holds the context: random keys and values, the same for every contender."""
    from transformers import DynamicCache

    rows = 1 if case.shared else case.batch
    if contender == OURS:
        tokens = rows * case.context + case.batch * (case.steps + WARM_STEPS)
        cache = tileformer.PagedKVCache.for_model(model, max_tokens=tokens + 2 * 64 * case.batch)
    else:
        cache = DynamicCache(config=model.config)
    generator = torch.Generator().manual_seed(1)
    for layer in range(case.layers):
        key, value = (
            torch.randn(rows, 3, case.context, 64, generator=generator).to(model.dtype) for _ in range(2)
        )
        cache.update(key, value, layer)
    if case.shared:
        cache.batch_repeat_interleave(case.batch)
    return cache


def _measure(model: PreTrainedModel, case: Case) -> list[dict[str, Any]]:
    """Steps of the contenders by turns; the best step of each counts."""
    caches = {name: _filled(model, case, name) for name in (OURS, PEER)}
    generator = torch.Generator().manual_seed(2)
    best = dict.fromkeys(caches, float("inf"))
    difference = 0.0
    for step in range(WARM_STEPS + case.steps):
        tokens = torch.randint(VOCABULARY, (case.batch, 1), generator=generator)
        logits = {}
        for name, cache in caches.items():
            model.set_attn_implementation(ATTENTION[name])
            start = perf_counter()
            logits[name] = model(tokens, cache=cache, logits_to_keep=1).logits
            if step >= WARM_STEPS:
                best[name] = min(best[name], perf_counter() - start)
        ours, theirs = (logits[name].float() for name in (OURS, PEER))
        difference = max(difference, ((ours - theirs).abs().max() / theirs.abs().max()).item())
    pool = caches[OURS].pool
    common = {
        **asdict(case),
        "dtype": str(model.dtype).removeprefix("torch."),
        "threads": torch.get_num_threads(),
        "isa": tileformer.isa(),
        "logits_difference": difference,
    }
    per_row = -(-(case.context + case.steps + WARM_STEPS) // pool.page_size)
    pages = {"pages": pool.used_pages, "pages_alone": case.batch * per_row, "page_size": pool.page_size}
    return [
        {
            "contender": name,
            "tokens_per_second": case.batch / seconds,
            **common,
            **(pages if name == OURS else {}),
        }
        for name, seconds in best.items()
    ]


def lines_of(points: list[dict[str, Any]]) -> list[str]:
    """The points of one case as text."""
    ours, peer = points
    sharing = ", one prompt in shared pages" if ours["shared"] else ""
    lines = [
        f"{ours['batch']} x {ours['context']} tokens{sharing}, {ours['layers']} layers, {ours['dtype']}, "
        f"{ours['threads']} threads"
    ]
    ratio = f"  {_ratio(ours, peer):.2f}x {PEER}'s speed"
    pages = f", {ours['pages']} pages" + (f" instead of {ours['pages_alone']}" if ours["shared"] else "")
    lines.append(f"  {OURS:<18} {ours['tokens_per_second']:>8.1f} tok/s{ratio}{pages}")
    lines.append(f"  {PEER:<18} {peer['tokens_per_second']:>8.1f} tok/s")
    return lines


# Context -> times the peer's tokens/s at least. Below it weights are what is read, and both read the same.
AGAINST_SDPA = {128: 0.95, 2048: 1.1, 8192: 1.3}
SHARED_PAGES = 0.1  # of what the sequences would take alone


def judge(points: list[dict[str, Any]]) -> list[Verdict]:
    """Speed against sdpa, the same logits, and the pages of a shared prompt."""
    ours, peer = points
    at = f"{ours['batch']} x {ours['context']}{' shared' if ours['shared'] else ''}"
    tolerance = LOGITS_TOLERANCE[ours["dtype"]]
    verdicts = [
        Verdict(f"{at}: times {PEER}'s tokens/s", _ratio(ours, peer), ">=", AGAINST_SDPA[ours["context"]]),
        Verdict(f"{at}: logits' difference", ours["logits_difference"], "<=", tolerance),
    ]
    if ours["shared"]:
        share = ours["pages"] / ours["pages_alone"]
        verdicts.append(Verdict(f"{at}: pages, of those alone", share, "<=", SHARED_PAGES))
    return verdicts


def _ratio(ours: dict[str, Any], peer: dict[str, Any]) -> float:
    return ours["tokens_per_second"] / peer["tokens_per_second"]
