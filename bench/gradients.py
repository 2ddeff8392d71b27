"""The backward of a contender's attention as a call to time, and the gradients to expect of it."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from bench.case import AttentionCase
from bench.contenders import Contender, Unsupported
from bench.inputs import Inputs, attended

Gradients = tuple[torch.Tensor, ...]  # of query, key and value
MAX_CHECKED = 4096  # tokens: the scores of a kv head's first query head are made for the check


def grad_out_of(case: AttentionCase) -> torch.Tensor:
    """The gradient that arrives, normal random like the inputs, in their dtype."""
    generator = torch.Generator().manual_seed(21)
    return torch.randn(case.batch, case.heads, case.seq, case.dim, generator=generator)


def backward_call(contender: Contender, case: AttentionCase, inputs: Inputs) -> Callable[[], Gradients]:
    """Runs the forward once and returns the call of its backward. Raises Unsupported where there is none."""
    with torch.inference_mode(False), torch.enable_grad():
        tensors = [t.requires_grad_() for t in (inputs.query, inputs.key, inputs.value)]
        out = contender.prepare(case, inputs)()
        if not out.requires_grad:
            raise Unsupported("no backward")
        grad_out = grad_out_of(case).to(out.dtype)

    def run() -> Gradients:
        with torch.inference_mode(False), torch.enable_grad():
            return torch.autograd.grad(out, tensors, grad_out, retain_graph=True)

    return run


def gradient_error(case: AttentionCase, inputs: Inputs, gradients: Gradients) -> float | None:
    """Largest error of the gradients of the first kv head, relative to the largest expected value of each.

    None where it would take too long to compute, or where the case has options that are not in this formula.
    """
    if case.seq > MAX_CHECKED or case.mask or case.softcap or case.alibi or case.sinks:
        return None
    group = case.heads // case.kv_heads
    query, grad = inputs.query[0, :group].detach().double(), grad_out_of(case)[0, :group].double()
    grad = grad.to(inputs.query.dtype).double()
    key, value = inputs.key[0, 0].detach().double(), inputs.value[0, 0].detach().double()
    expected = [torch.zeros_like(query), torch.zeros_like(key), torch.zeros_like(value)]
    hidden = ~attended(case, torch.arange(case.seq))
    scale = 1 / math.sqrt(case.dim)
    for h in range(group):
        p = (query[h] @ key.T * scale).masked_fill_(hidden, -math.inf).softmax(-1)
        expected[2] += p.T @ grad[h]
        dp = grad[h] @ value.T
        ds = p * (dp - (p * dp).sum(-1, keepdim=True)) * scale
        expected[0][h] = ds @ key
        expected[1] += ds.T @ query[h]
    actual = (gradients[0][0, :group], gradients[1][0, 0], gradients[2][0, 0])
    errors = [((a.double() - e).abs().max() / e.abs().max()).item() for a, e in zip(actual, expected)]
    return max(errors, key=lambda x: math.inf if math.isnan(x) else x)
