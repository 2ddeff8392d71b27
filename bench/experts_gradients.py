"""The backward, or a whole training step, of a contender's layer as a call, and the gradients to expect."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from bench.contenders import Unsupported
from bench.experts_inputs import Call, ExpertsInputs, checked_rows, expected_rows, experts_of
from bench.inputs import DTYPES

Gradients = tuple[torch.Tensor, ...]  # of hidden, routing weights, gate_up and down


def _grad_out_of(inputs: ExpertsInputs) -> torch.Tensor:
    """The gradient that arrives, normal random like the tokens."""
    generator = torch.Generator().manual_seed(22)
    case = inputs.case
    return torch.randn(case.tokens, case.hidden, generator=generator).to(DTYPES[case.dtype])


def gradient_call(inputs: ExpertsInputs, forward: Call) -> Callable[[], Gradients]:
    """backward: runs the forward once and returns the call of its gradients; step: the call does both.

    Raises Unsupported where there is no backward.
    """
    routing, layer = inputs.routings[0], inputs.layers[0]
    leaves = [inputs.hidden, routing.weights, layer.gate_up, layer.down]

    def made() -> torch.Tensor:
        out = forward()
        if not out.requires_grad:
            raise Unsupported("no backward")
        return out

    with torch.inference_mode(False), torch.enable_grad():
        grad_out = _grad_out_of(inputs)
        kept = made() if inputs.case.work == "backward" else None

    def run() -> Gradients:
        with torch.inference_mode(False), torch.enable_grad():
            out = made() if kept is None else kept
            return torch.autograd.grad(out, leaves, grad_out, retain_graph=kept is not None)

    return run


def gradient_error(inputs: ExpertsInputs, gradients: Gradients) -> float:
    """Largest error relative to the largest expected value of each gradient: of hidden and routing weights on
    a few tokens, of the weights on the expert that has most of them.
    """
    layer, routing = inputs.layers[0], inputs.routings[0]
    grad_out = _grad_out_of(inputs).double()
    rows = checked_rows(inputs.case)
    busiest = int(routing.experts.flatten().mode().values)
    tokens, slots = torch.where(routing.experts == busiest)
    with torch.inference_mode(False), torch.enable_grad():
        hidden = inputs.hidden.detach()[rows].double().requires_grad_()
        weights = routing.weights.detach()[rows].double().requires_grad_()
        out = expected_rows(hidden, layer, routing, rows, weights)
        of_tokens = torch.autograd.grad(out, (hidden, weights), grad_out[rows])
        own = [x.detach()[busiest].double().requires_grad_() for x in (layer.gate_up, layer.down)]
        out = experts_of(inputs.hidden.detach()[tokens].double(), *own)
        share = routing.weights.detach()[tokens, slots].double()
        of_weights = torch.autograd.grad(out, own, share[:, None] * grad_out[tokens])
    actual = gradients[0][rows], gradients[1][rows], gradients[2][busiest], gradients[3][busiest]
    pairs = zip(actual, (*of_tokens, *of_weights))
    errors = [((a.double() - e).abs().max() / e.abs().max()).item() for a, e in pairs]
    return max(errors, key=lambda x: math.inf if math.isnan(x) else x)
