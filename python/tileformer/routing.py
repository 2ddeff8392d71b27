"""The router of a mixture of experts: which experts serve a token, and with which weights."""

from __future__ import annotations

import math

import torch

from tileformer import _routing_ops
from tileformer._functorch import inside_transform, refuse_tangents

_NO_FORWARD_MODE = (
    "tileformer.route has no forward-mode derivative (jvp), but {name} carries a tangent; detach it, or use "
    "torch.softmax and topk"
)


def route(
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
    capacity_factor: float | None = None,
    drop: str = "position",
) -> tuple[torch.Tensor, torch.Tensor]:
    """The top_k experts of each token by score, and their weights.

    Mixtral's router is the default; so is gpt-oss's, whose softmax of the chosen logits is what renormalize
    gives. Qwen3-MoE: renormalize=norm_topk_prob. DeepSeek-V3: scoring="sigmoid", its bias,
    num_groups=n_group, top_groups=topk_group, renormalize=norm_topk_prob, scale=routed_scaling_factor.

    Args:
        logits: [tokens, experts], 1 to 1024 experts, float32, bfloat16, float16 or float64 (float64: slow
            reference).
        top_k: 1 to the number of experts that can be chosen.
        scoring: "softmax" over all experts, or "sigmoid" of each.
        bias: float [experts], finite or -inf, added to the scores for the choice, not to the weights.
        num_groups: divides the experts into groups of neighbours.
        top_groups: so many groups are kept, those with the largest sum of their two best score + bias.
        renormalize: weights are divided by the sum of the chosen scores (sigmoid: plus 1e-20).
        scale: positive factor of the weights.
        capacity: tokens that an expert serves at most; further slots are dropped.
        capacity_factor: the same as ceil(tokens * top_k / experts * capacity_factor).
        drop: which tokens an expert keeps: the first ones ("position"), or those with the largest weights
            ("score", ties to the lower token).

    Ties go to the lower index. A row with a NaN logit (softmax: also one whose largest logit is infinite) has
    weights of NaN and experts 0 to top_k - 1; no other row changes, but where a capacity makes them compete.

    Returns:
        (weights, experts), each [tokens, top_k], experts by falling score (+ bias): weights float32 (float64
        for float64 logits), differentiable once in logits; experts int32. A dropped slot has expert -1,
        weight 0 and no gradient; the token's other weights are those that they were beside it.

    Raises:
        ValueError: an argument does not fit; the message names it, what was given and what is allowed.
        NotImplementedError: a second or a forward-mode derivative is asked for.

    Sources: Shazeer et al., Sparsely-Gated Mixture-of-Experts (2017); Fedus et al., Switch Transformers
    (2021); DeepSeek-V3 (2024). Slots are dropped as in Megatron-LM.
    """
    _routing_ops.check_rank("logits", logits, "[tokens, experts]")
    _one_of("scoring", scoring, _routing_ops.SCORING)
    _one_of("drop", drop, _routing_ops.DROP)
    if bias is not None and bias.requires_grad and torch.is_grad_enabled():
        raise ValueError(
            "bias: got a tensor that requires grad, expected one that does not: the choice has no gradient"
        )
    _check_k(top_k, logits.shape[1], num_groups, top_groups)
    refuse_tangents(_NO_FORWARD_MODE, logits=logits)
    inside_transform("route")
    weights, experts, _ = _routing_ops.route(
        logits,
        top_k,
        bias,
        _routing_ops.SCORING[scoring],
        num_groups,
        top_groups,
        renormalize,
        scale,
        _capacity(logits, top_k, capacity, capacity_factor),
        _routing_ops.DROP[drop],
    )
    return weights, experts


def _one_of(name: str, given: str, allowed: dict[str, int]) -> None:
    if given not in allowed:
        raise ValueError(f"{name}: got {given!r}, expected {' or '.join(map(repr, allowed))}")


def _check_k(top_k: int, experts: int, num_groups: int, top_groups: int) -> None:
    if num_groups < 1 or experts % num_groups:
        raise ValueError(f"num_groups: got {num_groups}, expected a divisor of the {experts} experts")
    if not 1 <= top_groups <= num_groups:
        raise ValueError(f"top_groups: got {top_groups}, expected 1 to {num_groups}")
    most = experts // num_groups * top_groups
    if not 1 <= top_k <= most:
        raise ValueError(f"top_k: got {top_k}, expected 1 to {most}, the experts that can be chosen")


def _capacity(
    logits: torch.Tensor, top_k: int, capacity: int | None, capacity_factor: float | None
) -> int | None:
    if capacity_factor is None:
        return capacity
    if capacity is not None:
        raise ValueError("capacity_factor: got one beside capacity, expected one of the two")
    if not 0 < capacity_factor < math.inf:
        raise ValueError(f"capacity_factor: got {capacity_factor}, expected a finite number above 0")
    tokens, experts = logits.shape
    return math.ceil(tokens * top_k / experts * capacity_factor)
