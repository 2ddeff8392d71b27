"""Experts as a loop of torch's own operators: what fused_experts is compared with."""

from __future__ import annotations

import torch
import torch.nn.functional as F

ACTIVATIONS = ("silu", "gelu", "gelu_tanh", "swiglu_oai")


def activated(rows: torch.Tensor, activation: str, interleaved: bool, alpha: float, limit: float):
    gate, up = (rows[..., ::2], rows[..., 1::2]) if interleaved else rows.chunk(2, dim=-1)
    if activation == "swiglu_oai":
        gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
        return (up + 1) * gate * torch.sigmoid(alpha * gate)
    if activation == "silu":
        return F.silu(gate) * up
    return F.gelu(gate, approximate="tanh" if activation == "gelu_tanh" else "none") * up


def exact_experts(
    hidden,
    gate_up,
    down,
    weights,
    experts,
    *,
    activation="silu",
    gate_up_bias=None,
    down_bias=None,
    interleaved=False,
    alpha=1.702,
    limit=7.0,
):
    """Every expert computes its tokens; differentiable by torch."""
    out = torch.zeros_like(hidden)
    for e in range(gate_up.shape[0]):
        token, slot = torch.where(experts == e)
        rows = F.linear(hidden[token], gate_up[e], None if gate_up_bias is None else gate_up_bias[e])
        h = activated(rows, activation, interleaved, alpha, limit)
        y = F.linear(h, down[e], None if down_bias is None else down_bias[e])
        out = out.index_add(0, token, y * weights[token, slot, None].to(y.dtype))
    return out


def inputs(
    tokens=21,
    k=2,
    experts=5,
    hidden=24,
    inter=12,
    *,
    dtype=torch.float32,
    bias=False,
    sentinels=False,
    grad=False,
):
    """Positional arguments of fused_experts, and a dict of biases. sentinels: some slots name no expert."""
    generator = torch.Generator().manual_seed(tokens * 31 + experts)

    def normal(*shape, size=1.0):
        return (
            (size * torch.randn(*shape, generator=generator, dtype=torch.float64))
            .to(dtype)
            .requires_grad_(grad)
        )

    logits = torch.randn(tokens, experts, generator=generator)
    index = logits.topk(k, dim=-1).indices
    if sentinels:
        index[::3, 0] = -1
        index[1::3, -1] = experts
    positional = (
        normal(tokens, hidden),
        normal(experts, 2 * inter, hidden, size=hidden**-0.5),
        normal(experts, hidden, inter, size=inter**-0.5),
        normal(tokens, k),
        index,
    )
    if not bias:
        return positional, {}
    return positional, {
        "gate_up_bias": normal(experts, 2 * inter, size=0.3),
        "down_bias": normal(experts, hidden, size=0.3),
    }
