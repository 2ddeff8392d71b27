"""Router logits and tokens, and whether a contender put the tokens in the order of their experts."""

from __future__ import annotations

import torch

from bench.experts_case import RouteCase
from bench.inputs import DTYPES

TOLERANCE = 1e-3  # rows are copies: only the order of the sums differs


def route_inputs(case: RouteCase) -> tuple[torch.Tensor, torch.Tensor]:
    """tokens [tokens, hidden], and logits [tokens, experts] in fp32, in which hardly any two are equal."""
    generator = torch.Generator().manual_seed(20)
    hidden = torch.randn(case.tokens, case.hidden, generator=generator).to(DTYPES[case.dtype])
    return hidden, torch.randn(case.tokens, case.experts, generator=generator)


def route_error(case: RouteCase, hidden: torch.Tensor, logits: torch.Tensor, rows: torch.Tensor) -> float:
    """Largest error of an expert's sum of rows, relative to the largest expected value.

    rows: [tokens * top_k, hidden], those of an expert one after the other, in any order.
    """
    chosen = logits.double().topk(case.top_k).indices.flatten()
    of_row = chosen.sort().values
    tokens = torch.arange(case.tokens).repeat_interleave(case.top_k)
    expected, found = (torch.zeros(case.experts, case.hidden, dtype=torch.float64) for _ in range(2))
    expected.index_add_(0, chosen, hidden[tokens].double())
    found.index_add_(0, of_row, rows.double())
    return ((found - expected).abs().max() / expected.abs().max()).item()
