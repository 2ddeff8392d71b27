"""Random inputs of a case, the same in every process, and the expected output of a few of its rows."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from bench.case import AttentionCase

DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}

# Largest error, relative to the largest expected value, that still counts as the same computation. It is
# there to refuse a contender that computes something else, not to rank accuracy: the tests do that.
TOLERANCE = {"fp32": 1e-3, "fp16": 1e-2, "bf16": 5e-2}


@dataclass
class Inputs:
    """query [batch, heads, seq, dim], key and value [batch, kv_heads, seq, dim], and the case's options."""

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    mask: torch.Tensor | None = None  # broadcasts to [batch, heads, seq, seq]
    alibi_slopes: torch.Tensor | None = None  # fp32 [heads]
    sinks: torch.Tensor | None = None  # fp32 [heads]


def make_inputs(case: AttentionCase) -> Inputs:
    """Normal random data from a fixed seed: never zeros, on which matrix units run faster."""
    generator = torch.Generator().manual_seed(20)
    dtype = DTYPES[case.dtype]

    def normal(heads: int) -> torch.Tensor:
        return torch.randn(case.batch, heads, case.seq, case.dim, generator=generator).to(dtype)

    query, key, value = normal(case.heads), normal(case.kv_heads), normal(case.kv_heads)
    if case.key_growth:
        growth = 1 + case.key_growth * torch.arange(case.seq)
        key = (key.float() * growth[:, None]).to(dtype)
    mask = None
    if case.mask == "bool":
        mask = torch.rand(case.seq, case.seq, generator=generator) < 0.9
        mask.fill_diagonal_(True)  # every row attends to something: peers differ on empty rows
    elif case.mask == "float":
        mask = torch.randn(case.seq, case.seq, generator=generator).to(dtype)
    elif case.mask == "padding":
        mask = (torch.arange(case.seq) < case.padded_keys).expand(case.batch, 1, 1, case.seq)
    slopes = torch.logspace(-1, -8, case.heads, base=2) if case.alibi else None
    sinks = torch.randn(case.heads, generator=generator) if case.sinks else None
    return Inputs(query, key, value, mask, slopes, sinks)


def attended(case: AttentionCase, queries: torch.Tensor) -> torch.Tensor:
    """bool [len(queries), seq]: the keys that causality and window leave to each query."""
    distance = torch.arange(case.seq)[None, :] - queries[:, None]  # key - query
    left, right = case.window
    seen = torch.ones_like(distance, dtype=torch.bool)
    if case.causal:
        seen &= distance <= 0
    if left >= 0:
        seen &= distance >= -left
    if right >= 0:
        seen &= distance <= right
    return seen


def expected_rows(case: AttentionCase, inputs: Inputs, queries: torch.Tensor) -> torch.Tensor:
    """fp64 [batch, heads, len(queries), dim]: attention of these query positions, as the formula says it."""
    group = case.heads // case.kv_heads
    query = inputs.query[:, :, queries].double()
    key = inputs.key.double().repeat_interleave(group, 1)
    value = inputs.value.double().repeat_interleave(group, 1)
    scores = query @ key.transpose(-1, -2) / math.sqrt(case.dim)
    if case.softcap:
        scores = case.softcap * torch.tanh(scores / case.softcap)
    if inputs.alibi_slopes is not None:
        distance = (torch.arange(case.seq)[None, :] - queries[:, None]).abs()
        scores = scores - inputs.alibi_slopes.double()[:, None, None] * distance
    seen = attended(case, queries)
    if inputs.mask is not None:
        rows = inputs.mask.expand(case.batch, case.heads, case.seq, case.seq)[:, :, queries]
        if rows.dtype == torch.bool:
            seen = seen & rows
        else:
            scores = scores + rows.double()
    scores = scores.masked_fill(~seen, -math.inf)
    if inputs.sinks is not None:
        sink = inputs.sinks.double()[:, None, None].expand(case.batch, case.heads, len(queries), 1)
        return torch.cat([scores, sink], -1).softmax(-1)[..., :-1] @ value
    return scores.softmax(-1) @ value


def error_of(case: AttentionCase, inputs: Inputs, output: torch.Tensor) -> float:
    """Largest error over three rows of every head, relative to the largest expected value.

    output: [batch, heads, seq, dim].
    """
    queries = torch.tensor([0, case.seq // 2, case.seq - 1])
    expected = expected_rows(case, inputs, queries)
    return ((output[:, :, queries].double() - expected).abs().max() / expected.abs().max()).item()
