"""What keys and values in fewer bits cost, on the queries, keys and values of a real model's layers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

import tileformer
from bench.row import Verdict

DTYPES = ("bfloat16", "float16", "int8", "float8_e4m3fn", "float8_e5m2")
QUERIES = 8  # of the text's end: decode with several queries at once
TEXT = (
    "A river starts where water gathers: a spring, a lake, or the foot of a glacier. It runs downhill, "
    "takes up smaller streams, and cuts a valley into the rock that it crosses. Where the land is flat it "
    "slows down and drops the sand it carried, so that its bed shifts from year to year. "
) * 6


def _captured(tokens: int) -> list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """(query, key, value) of each layer of SmolLM2 reading the text, [heads, tokens, dim], keys rotated."""
    from transformers import AttentionInterface
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    from tileformer.models.conversion_cache import ConversionCache
    from tileformer.models.gguf import convert_gguf
    from tileformer.models.loading import import_libraries, load_model
    from tileformer.models.source import find_model

    import_libraries()
    layers = []

    def capture(module, query, key, value, *args, **kwargs):
        layers.append((query[0].clone(), key[0].clone(), value[0].clone()))
        return sdpa_attention_forward(module, query, key, value, *args, **kwargs)

    AttentionInterface.register("capture", capture)
    folder = ConversionCache(find_model(None).path).make(convert_gguf)
    loaded = load_model(folder, torch.float32, "sdpa")
    loaded.model.set_attn_implementation("capture")
    ids = loaded.tokenizer(TEXT, return_tensors="pt").input_ids[:, :tokens]
    with torch.no_grad():
        loaded.model(ids, use_cache=False)
    return layers


def _exact(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Causal attention of the last queries in fp64."""
    query, key, value = (x.double() for x in (query, key, value))
    group = query.shape[0] // key.shape[0]
    key, value = key.repeat_interleave(group, 0), value.repeat_interleave(group, 0)
    scores = query @ key.transpose(1, 2) * query.shape[-1] ** -0.5
    hidden = torch.ones(scores.shape[1:], dtype=torch.bool).triu(key.shape[1] - query.shape[1] + 1)
    return scores.masked_fill(hidden, -torch.inf).softmax(-1) @ value


def _error(result: torch.Tensor, exact: torch.Tensor) -> float:
    return ((result.double() - exact).norm() / exact.norm()).item()


def run(tokens: int) -> Iterator[dict[str, Any]]:
    """For each storage dtype the error relative to fp64 attention: largest and mean over the layers."""
    layers = _captured(tokens)
    for name in DTYPES:
        ours, stored = [], []
        for query, key, value in layers:
            kv_heads, length, dim = key.shape
            cache = tileformer.PagedKVCache(
                1, kv_heads, dim, num_pages=-(-length // 64), dtype=getattr(torch, name)
            )
            sequence = cache.add()
            step = cache.extend([sequence], length)
            cache.append(0, key.transpose(0, 1), value.transpose(0, 1), step)
            last = query[:, -QUERIES:]
            exact = _exact(last, key, value)
            # As a step of its own, which sees all keys.
            out = tileformer.paged_attention(
                last[None],
                cache.layer(0).key,
                cache.layer(0).value,
                step.block_table,
                step.key_lengths,
                key_scale=cache.layer(0).key_scale,
                value_scale=cache.layer(0).value_scale,
                causal=True,
            )[0]
            ours.append(_error(out, exact))
            stored.append(_error(_exact(last, *cache.gather(0, sequence)), exact))
        yield {
            "isa": tileformer.isa(),
            "storage": name,
            "tokens": length,
            "mean_error": sum(ours) / len(ours),
            "largest_error": max(ours),
            "mean_error_of_storage": sum(stored) / len(stored),
            "ratio": max(a / b for a, b in zip(ours, stored, strict=True)),
        }


def line_of(point: dict[str, Any]) -> str:
    """One point as text."""
    return (
        f"{point['storage']:<15} {point['tokens']} tokens {point['isa']:<6} "
        f"error {point['mean_error']:.1e} (layer with most: {point['largest_error']:.1e}), "
        f"of storing alone {point['mean_error_of_storage']:.1e}, at most {point['ratio']:.3f} times it"
    )


def judge(points: list[dict[str, Any]]) -> list[Verdict]:
    """Computing in few bits adds at most half of the error that storing in few bits has."""
    return [
        Verdict(f"error of {point['storage']} over storing alone", point["ratio"], "<=", 1.5)
        for point in points
    ]
