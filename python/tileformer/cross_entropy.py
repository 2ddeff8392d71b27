"""Fused linear layer and cross-entropy: the loss of a language model without its logits."""

from __future__ import annotations

import torch

from tileformer import _loss_ops
from tileformer._functorch import inside_transform, refuse_tangents

_REDUCTIONS = {"mean": _loss_ops.MEAN, "sum": _loss_ops.SUM, "none": _loss_ops.NONE}
_DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)

_NO_FORWARD_MODE = (
    "tileformer.linear_cross_entropy has no forward-mode derivative (jvp), but {name} carries a tangent; "
    "detach it, or use torch.nn.functional.linear and cross_entropy"
)


def linear_cross_entropy(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    target: torch.Tensor,
    *,
    bias: torch.Tensor | None = None,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    softcap: float = 0.0,
    reduction: str = "mean",
) -> torch.Tensor:
    """cross_entropy(softcap(hidden @ weight.T + bias), target), without rows * vocab logits in memory.

    Logits are made for a few hundred rows at a time. Where a gradient is wanted (grad mode is on and an input
    requires it) it is computed in the same pass, weight's summed in fp32; backward only scales it. With
    reduction="none" backward makes the pass again: every row then has a gradient of its own coming in.

    Args:
        hidden: [..., hidden], float32, bfloat16, float16 or float64 (float64: slow reference).
        weight: [vocab, hidden], dtype of hidden.
        target: int64 [...], as hidden without its last dimension: 0 to vocab - 1, or ignore_index.
        bias: [vocab], dtype of hidden.
        ignore_index: rows with this target do not count and are not computed; nothing that they hold (NaN)
            has an influence. They are left out of the mean.
        label_smoothing: 0 to 1, the share of the target spread evenly over all classes.
        z_loss: adds z_loss * logsumexp(logits)^2 to each row's loss.
        softcap: c > 0 turns every logit x into c * tanh(x / c).
        reduction: "mean" over the rows that are not ignored (nan if there are none, with gradients of 0),
            "sum", or "none".

    Returns:
        float32 (float64 for float64 inputs): a scalar, or with "none" the shape of target, 0 in ignored rows.
        Differentiable once in hidden, weight and bias.

    Raises:
        ValueError: an argument does not fit; the message names it, what was given and what is allowed.
        NotImplementedError: a second or a forward-mode derivative is asked for.
    """
    _check(hidden, weight, target, bias, label_smoothing, z_loss, softcap, reduction)
    refuse_tangents(_NO_FORWARD_MODE, hidden=hidden, weight=weight, bias=bias)
    inside_transform("linear_cross_entropy")
    grad = torch.is_grad_enabled()
    want = [grad and t is not None and t.requires_grad for t in (hidden, weight, bias)]
    loss, *_ = _loss_ops.forward(
        hidden.reshape(target.numel(), hidden.shape[-1]),
        weight,
        target.reshape(-1),
        bias,
        ignore_index,
        label_smoothing,
        z_loss,
        softcap,
        _REDUCTIONS[reduction],
        *want,
    )
    return loss.reshape(target.shape) if reduction == "none" else loss


def _wrong(name: str, given: object, allowed: str) -> ValueError:
    return ValueError(f"{name}: got {given}, expected {allowed}")


def _check(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    target: torch.Tensor,
    bias: torch.Tensor | None,
    label_smoothing: float,
    z_loss: float,
    softcap: float,
    reduction: str,
) -> None:
    """Everything but the values in target, which the operator looks at."""
    for name, tensor in (("weight", weight), ("target", target), ("bias", bias)):
        if tensor is not None and tensor.device != hidden.device:
            raise _wrong(name, f"a tensor on {tensor.device}", f"one on {hidden.device}, as hidden")
    if hidden.dim() < 1:
        raise _wrong("hidden", "a scalar", "a tensor [..., hidden]")
    if weight.dim() != 2 or weight.shape[1] != hidden.shape[-1]:
        raise _wrong(
            "weight", f"shape {list(weight.shape)}", f"[vocab, {hidden.shape[-1]}], as hidden's last"
        )
    if weight.shape[0] == 0:
        raise _wrong("weight", f"shape {list(weight.shape)}", "at least one class")
    if target.dtype != torch.int64 or target.shape != hidden.shape[:-1]:
        given = f"{target.dtype} {list(target.shape)}"
        raise _wrong("target", given, f"torch.int64 {list(hidden.shape[:-1])}, as hidden without its last")
    if bias is not None and bias.shape != weight.shape[:1]:
        raise _wrong("bias", f"shape {list(bias.shape)}", f"[{weight.shape[0]}], one per row of weight")
    if hidden.dtype not in _DTYPES:
        raise _wrong("hidden", hidden.dtype, ", ".join(str(d) for d in _DTYPES))
    if not torch.is_autocast_enabled("cpu"):
        for name, tensor in (("weight", weight), ("bias", bias)):
            if tensor is not None and tensor.dtype != hidden.dtype:
                raise _wrong(name, tensor.dtype, f"{hidden.dtype}, as hidden")
    if reduction not in _REDUCTIONS:
        raise _wrong("reduction", repr(reduction), ", ".join(repr(r) for r in _REDUCTIONS))
    if not 0 <= label_smoothing <= 1:
        raise _wrong("label_smoothing", label_smoothing, "a number from 0 to 1")
    if not 0 <= z_loss <= 1e30:
        raise _wrong("z_loss", z_loss, "a number from 0 to 1e30")
    if not (softcap == 0 or 1e-30 <= softcap <= 1e30):
        raise _wrong("softcap", softcap, "a number from 1e-30 to 1e30, or 0 for none")
