"""Mixture of experts: from the router's choice to combined output."""

from __future__ import annotations

import torch

from tileformer import _experts_ops
from tileformer._functorch import inside_transform, refuse_tangents
from tileformer.packed_experts import PackedExperts

_ACTIVATIONS = {"silu": 0, "gelu": 1, "gelu_tanh": 2, "swiglu_oai": 3}


def fused_experts(
    hidden: torch.Tensor,
    gate_up: torch.Tensor | PackedExperts,
    down: torch.Tensor | None,
    weights: torch.Tensor,
    experts: torch.Tensor,
    *,
    activation: str = "silu",
    gate_up_bias: torch.Tensor | None = None,
    down_bias: torch.Tensor | None = None,
    interleaved: bool = False,
    alpha: float = 1.702,
    limit: float = 7.0,
    recompute: bool = False,
    shared_gate_up: torch.Tensor | None = None,
    shared_down: torch.Tensor | None = None,
    shared_weight: torch.Tensor | None = None,
) -> torch.Tensor:
    """out[t] = sum_j weights[t, j] * (down[e] h + down_bias[e]), e = experts[t, j], h = up * act(gate) of
    (gate, up) = gate_up[e] hidden[t] + gate_up_bias[e].

    Tokens are gathered while they are packed, activation and weighted sum happen where a product's tile
    leaves the matrix unit: no copy of the tokens in the order of the experts, nor of the experts' outputs,
    is made.

    Args:
        hidden: [tokens, hidden], float32, bfloat16, float16 or float64 (float64: slow reference).
        gate_up: [experts, 2 * inter, hidden], dtype of hidden, gates first. Transposed storage is
            recognised by its strides: a tensor [experts, hidden, 2 * inter] goes in as
            gate_up.transpose(1, 2), without a copy. Or what pack_experts returned, with down=None: it holds
            the biases too, and possibly quantised weights.
        down: [experts, hidden, inter], dtype of hidden; transposed as gate_up.
        weights: [tokens, k], any float dtype; from the router.
        experts: [tokens, k], int32 or int64. -1 or the number of experts contributes nothing (a slot that
            another rank serves), whatever its weight is.
        activation: "silu", "gelu" (erf), "gelu_tanh", or "swiglu_oai", gpt-oss's
            (clamp(up, -limit, limit) + 1) * g * sigmoid(alpha * g), g = min(gate, limit).
        gate_up_bias, down_bias: [experts, 2 * inter] and [experts, hidden], float.
        interleaved: rows of gate_up and of its bias are gate, up, gate, up, ...
        recompute: keep nothing of gate and up ([tokens * k, 2 * inter]) for the backward, which then
            computes them again.
        shared_gate_up, shared_down: [2 * shared_inter, hidden] and [hidden, shared_inter]: an expert that
            every token passes, added to the others (Qwen2-MoE, DeepSeek). Gates first, no biases, the same
            activation.
        shared_weight: [tokens] or [tokens, 1], its weight per token; default 1.

    Differentiable once in hidden, gate_up, down, weights, the biases and the shared expert's tensors, except
    through quantised weights. Sums are float32; results do not depend on the number of threads.

    Returns:
        [tokens, hidden], dtype of hidden.

    Raises:
        ValueError: an argument does not fit; the message names it, what was given and what is allowed.
        NotImplementedError: a gradient through quantised weights, a second or a forward-mode derivative is
            asked for.
    """
    if activation not in _ACTIVATIONS:
        raise ValueError(f"activation: got {activation!r}, expected one of {', '.join(_ACTIVATIONS)}")
    gate_up_scale = down_scale = None
    if isinstance(gate_up, PackedExperts):
        if any(x is not None for x in (down, gate_up_bias, down_bias)) or interleaved:
            raise ValueError(
                "gate_up: got packed experts beside down, a bias or interleaved=True, expected down=None and "
                "nothing else, as packed experts hold them"
            )
        packed = gate_up
        gate_up, down, gate_up_scale, down_scale = (
            packed.gate_up,
            packed.down,
            packed.gate_up_scale,
            packed.down_scale,
        )
        gate_up_bias, down_bias = packed.gate_up_bias, packed.down_bias
    elif down is None:
        raise ValueError("down: got None, expected a tensor [experts, hidden, inter]")
    else:
        for name, weight in (("gate_up", gate_up), ("down", down)):
            if not weight.is_floating_point():
                raise ValueError(f"{name}: got {weight.dtype}, expected a float dtype, or pack_experts(...)")
    options = (
        gate_up_bias,
        down_bias,
        gate_up_scale,
        down_scale,
        _ACTIVATIONS[activation],
        interleaved,
        alpha,
        limit,
    )
    out = _run(hidden, gate_up, down, weights, experts, options, recompute)
    if shared_gate_up is None and shared_down is None and shared_weight is None:
        return out
    return out + _shared(
        hidden,
        shared_gate_up,
        shared_down,
        shared_weight,
        (_ACTIVATIONS[activation], alpha, limit),
        recompute,
    )


def _run(hidden, gate_up, down, weights, experts, options: tuple, recompute: bool) -> torch.Tensor:
    tensors = {
        "hidden": hidden,
        "gate_up": gate_up,
        "down": down,
        "weights": weights,
        "gate_up_bias": options[0],
        "down_bias": options[1],
    }
    refuse_tangents(_experts_ops.NO_FORWARD_MODE, **tensors)
    differentiable = torch.is_grad_enabled() and (
        inside_transform("fused_experts") or any(t is not None and t.requires_grad for t in tensors.values())
    )
    if not differentiable:
        return _experts_ops.inference(hidden, gate_up, down, weights, experts, *options)
    if options[2] is not None:
        raise NotImplementedError(_experts_ops.NO_CODE_GRADIENT)
    out, _ = _experts_ops.forward(hidden, gate_up, down, weights, experts, *options, not recompute)
    return out


def _shared(hidden, gate_up, down, weight, activation: tuple, recompute: bool) -> torch.Tensor:
    """An expert for every token is one of one, chosen by all."""
    for name, tensor, layout in (
        ("shared_gate_up", gate_up, "[2 * shared_inter, hidden]"),
        ("shared_down", down, "[hidden, shared_inter]"),
    ):
        if tensor is None or tensor.dim() != 2:
            given = "None" if tensor is None else f"shape {list(tensor.shape)}"
            raise ValueError(f"{name}: got {given}, expected {layout}")
    tokens = hidden.shape[0]
    if weight is None:
        weight = hidden.new_ones((tokens, 1))
    elif tuple(weight.shape) not in ((tokens,), (tokens, 1)):
        raise ValueError(
            f"shared_weight: got shape {list(weight.shape)}, expected [{tokens}] or [{tokens}, 1]"
        )
    code, alpha, limit = activation
    options = (None, None, None, None, code, False, alpha, limit)
    index = torch.zeros((tokens, 1), dtype=torch.int32, device=hidden.device)
    return _run(hidden, gate_up[None], down[None], weight.reshape(tokens, 1), index, options, recompute)
