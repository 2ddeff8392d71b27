"""Attention in float64 with everything dense: what the operators are compared with."""

from __future__ import annotations

import math

import torch


def visible(
    seq_q: int,
    seq_k: int,
    *,
    causal: bool | str = False,
    window: tuple[int, int] = (-1, -1),
    diagonal: int | None = None,
) -> torch.Tensor:
    """bool [seq_q, seq_k]: which key a query sees by causal and window."""
    if diagonal is None:
        diagonal = 0 if causal == "top_left" else seq_k - seq_q
    distance = torch.arange(seq_k)[None, :] - (torch.arange(seq_q)[:, None] + diagonal)
    seen = torch.ones(seq_q, seq_k, dtype=torch.bool)
    if causal:
        seen &= distance <= 0
    if window[0] >= 0:
        seen &= distance >= -window[0]
    if window[1] >= 0:
        seen &= distance <= window[1]
    return seen


def exact_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    scale: float | None = None,
    causal: bool | str = False,
    window: tuple[int, int] = (-1, -1),
    attn_mask: torch.Tensor | None = None,
    alibi_slopes: torch.Tensor | None = None,
    softcap: float = 0.0,
    sinks: torch.Tensor | None = None,
    diagonal: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(out, lse) in float64, for tileformer.flash_attention's arguments."""
    q, k, v = (t.double() for t in (query, key, value))
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    scores = (1 / math.sqrt(q.shape[-1]) if scale is None else scale) * (q @ k.transpose(-1, -2))
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    seq_q, seq_k = scores.shape[-2:]
    seen = visible(seq_q, seq_k, causal=causal, window=window, diagonal=diagonal)
    if attn_mask is not None:
        if attn_mask.dtype == torch.bool:
            seen = seen & attn_mask
        else:
            scores = scores + attn_mask.double()
    if alibi_slopes is not None:
        top = diagonal if diagonal is not None else 0 if causal == "top_left" else seq_k - seq_q
        distance = (torch.arange(seq_q)[:, None] + top - torch.arange(seq_k)[None, :]).abs()
        slopes = alibi_slopes.double().reshape(-1, alibi_slopes.shape[-1], 1, 1)
        scores = scores - slopes * distance
    scores = scores.masked_fill(~seen, -math.inf)
    terms = scores
    if sinks is not None:
        column = sinks.double().reshape(1, -1, 1, 1).expand(*scores.shape[:-1], 1)
        terms = torch.cat((scores, column), -1)
    lse = torch.logsumexp(terms, -1) if terms.shape[-1] else scores.new_full(scores.shape[:-1], -math.inf)
    weights = torch.where(lse[..., None] == -math.inf, 0.0, torch.exp(scores - lse[..., None]))
    return weights @ v, lse


TOLERANCE = {torch.float64: 1e-12, torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}


def assert_matches(actual: torch.Tensor, expected: torch.Tensor, tolerance: float | None = None) -> None:
    """actual, of any float dtype, against the float64 expected; the bound grows with the largest value.

    tolerance: None is that of the dtype.
    """
    assert actual.shape == expected.shape
    finite = expected.isfinite()
    assert torch.equal(actual.isfinite(), finite)
    assert torch.equal(actual.double()[~finite], expected[~finite])
    if finite.any():
        bound = (tolerance or TOLERANCE[actual.dtype]) * max(1.0, expected[finite].abs().max().item())
        error = (actual.double() - expected)[finite].abs().max().item()
        assert error <= bound, f"largest error {error:.3g}, allowed {bound:.3g}"
