"""route by its definition, in torch's own operators: differentiable, any dtype, slow."""

from __future__ import annotations

import torch


def _largest(x: torch.Tensor, k: int, dim: int = 1) -> torch.Tensor:
    """Indices of the k largest, ties to the lower index, which topk leaves open."""
    return x.sort(dim=dim, descending=True, stable=True).indices.narrow(dim, 0, k)


def plain_route(
    logits: torch.Tensor,
    top_k: int,
    *,
    scoring: str = "softmax",
    bias: torch.Tensor | None = None,
    num_groups: int = 1,
    top_groups: int = 1,
    renormalize: bool = True,
    scale: float = 1.0,
    capacity: int | None = None,
    drop: str = "position",
) -> tuple[torch.Tensor, torch.Tensor]:
    tokens, count = logits.shape
    scores = logits.softmax(1) if scoring == "softmax" else logits.sigmoid()
    keys = scores.detach() if bias is None else scores.detach() + bias
    if top_groups < num_groups:
        groups = keys.view(tokens, num_groups, count // num_groups)
        best_two = groups.topk(min(2, groups.shape[2])).values.sum(2)
        kept = torch.zeros_like(best_two).scatter(1, _largest(best_two, top_groups), 1)
        keys = groups.masked_fill(kept[..., None] == 0, -torch.inf).view(tokens, count)
    chosen = _largest(keys, top_k)
    weights = scores.gather(1, chosen)
    if renormalize:
        weights = weights / (weights.sum(1, keepdim=True) + (1e-20 if scoring == "sigmoid" else 0))
    weights = weights * scale
    if capacity is None:
        return weights, chosen
    dense = torch.zeros_like(scores).scatter(1, chosen, weights.detach())
    routed = torch.zeros_like(scores).scatter(1, chosen, 1)
    if drop == "position":
        kept = routed.cumsum(0) <= capacity
    else:
        best = _largest(dense + routed, min(capacity, tokens), 0)
        kept = torch.zeros_like(scores).scatter(0, best, 1) > 0
    kept = kept.gather(1, chosen)
    return weights * kept, torch.where(kept, chosen, -1)
