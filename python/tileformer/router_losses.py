"""Auxiliary losses of a router: even load of the experts, small logits."""

from __future__ import annotations

from collections.abc import Sequence

import torch


def load_balancing_loss(
    logits: torch.Tensor | Sequence[torch.Tensor],
    top_k: int | None = None,
    *,
    experts: torch.Tensor | Sequence[torch.Tensor] | None = None,
    mask: torch.Tensor | None = None,
) -> torch.Tensor:
    """experts * sum over experts of (slots routed to it per token) * (its mean softmax probability).

    At its least, top_k, where all experts are used alike. The gradient goes through the probabilities.

    Args:
        logits: [tokens, experts], any float dtype, of one layer or of each of several, which are taken
            together.
        top_k: counts the top_k experts of each token by logit.
        experts: in its place the choice itself, int [tokens, k], as route returns it; the same number of
            tensors as logits. An index of -1 or of the number of experts is not counted.
        mask: any shape of `tokens` elements, bool or number: how much a token counts. One with 0 has no
            influence, whatever it holds.

    Returns:
        A float32 scalar (float64 for float64 logits), differentiable in logits; nan if no token counts.

    Equal to transformers' load_balancing_loss_func. Source: Fedus et al., Switch Transformers (2021),
    equations 4 to 6.
    """
    layers = _layers(logits)
    if (top_k is None) == (experts is None):
        raise ValueError("top_k: got both or none of top_k and experts, expected one of the two")
    chosen = [x.detach().topk(top_k).indices for x in layers] if experts is None else _layers(experts)
    if len(chosen) != len(layers):
        raise ValueError(f"experts: got {len(chosen)} layers, expected {len(layers)}, as logits")
    count = layers[0].shape[1]
    slots = probabilities = tokens = 0
    for layer, indices in zip(layers, chosen):
        if indices.dim() != 2 or indices.shape[0] != layer.shape[0]:
            raise ValueError(
                f"experts: got shape {list(indices.shape)}, expected [{layer.shape[0]}, k], tokens as logits"
            )
        x, weight = _weighted(layer, mask)
        # One entry before and one after the experts, for indices that are none.
        routed = x.new_zeros(count + 2)
        per_slot = weight[:, None].expand(indices.shape).reshape(-1)
        slots = slots + routed.scatter_add(0, indices.reshape(-1).long() + 1, per_slot)[1:-1]
        probabilities = probabilities + (x.softmax(1) * weight[:, None]).sum(0)
        tokens = tokens + weight.sum()
    return count * (slots / tokens * (probabilities / tokens)).sum()


def router_z_loss(
    logits: torch.Tensor | Sequence[torch.Tensor], *, mask: torch.Tensor | None = None
) -> torch.Tensor:
    """The mean over tokens of logsumexp(logits)^2, which keeps logits small.

    Arguments and result as in load_balancing_loss. Source: Zoph et al., ST-MoE (2022), equation 5.
    """
    total = tokens = 0
    for layer in _layers(logits):
        x, weight = _weighted(layer, mask)
        total = total + (x.logsumexp(1).square() * weight).sum()
        tokens = tokens + weight.sum()
    return total / tokens


def _layers(tensors: torch.Tensor | Sequence[torch.Tensor]) -> list[torch.Tensor]:
    layers = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
    if not layers:
        raise ValueError("logits: got no layer, expected one or more")
    for layer in layers:
        if layer.dim() != 2:
            raise ValueError(f"logits: got {layer.dim()} dimensions, expected 2 [tokens, experts]")
    return layers


def _weighted(layer: torch.Tensor, mask: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits in fp32, 0 where a token does not count, and how much each token counts."""
    x = layer if layer.dtype == torch.float64 else layer.float()
    if mask is None:
        return x, x.new_ones(x.shape[0])
    if mask.numel() != x.shape[0]:
        raise ValueError(f"mask: got shape {list(mask.shape)}, expected {x.shape[0]} elements, one per token")
    weight = mask.reshape(-1).to(x.dtype)
    return torch.where(weight[:, None] == 0, 0, x), weight
