"""Random weights, tokens and routings of a mixture of experts, and what a few tokens should become."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from bench.experts_case import ExpertsCase
from bench.inputs import DTYPES, TOLERANCE
from bench.paged_inputs import huge_tensor

# Of the weights' rounding to codes, groups of 64; there to refuse what computes something else.
CODE_TOLERANCE = {"int8": 5e-2, "int4": 4e-1}
TURNS = 8  # routings that calls use one after the other
_PERIOD = 4194301  # a prime: rows cut from a sequence of so many numbers are not alike

Call = Callable[[], torch.Tensor]


@dataclass(frozen=True)
class Layer:
    """gate_up [experts, 2 * inter, hidden], gate rows first; down [experts, hidden, inter]."""

    gate_up: torch.Tensor
    down: torch.Tensor


@dataclass(frozen=True)
class Routing:
    """weights [tokens, k], fp32; experts [tokens, k], int32."""

    weights: torch.Tensor
    experts: torch.Tensor


def _normal(shape: tuple[int, ...], deviation: float, dtype: torch.dtype, seed: int) -> torch.Tensor:
    """Normal random numbers, _PERIOD of them again and again, on huge pages; the same in every process."""
    count = min(_PERIOD, math.prod(shape))
    drawn = torch.randn(count, generator=torch.Generator().manual_seed(seed))
    numbers = drawn.mul_(deviation).to(dtype)
    out = huge_tensor(shape, dtype)
    for part in out.view(-1).split(count):
        part.copy_(numbers[: part.numel()])
    return out


# Variants of a row have the same weights: made once for all of them. Not in inference mode, as the weights
# of a backward need gradients.
@functools.lru_cache(maxsize=2)
@torch.inference_mode(False)
def _layers(count: int, experts: int, hidden: int, inter: int, dtype: str) -> tuple[Layer, ...]:
    """Of such a size that every stage has numbers around 1."""

    def layer(seed: int) -> Layer:
        gate_up = _normal((experts, 2 * inter, hidden), 1 / math.sqrt(hidden), DTYPES[dtype], seed)
        return Layer(
            gate_up, _normal((experts, hidden, inter), 1 / math.sqrt(inter), DTYPES[dtype], seed + 1)
        )

    return tuple(layer(30 + 2 * i) for i in range(count))


def forget() -> None:
    """Frees the weights that are kept for the next variant."""
    _layers.cache_clear()


def _routings(case: ExpertsCase) -> tuple[Routing, ...]:
    """One choice of experts, turned by a part of their number each time: other weights, as much work."""
    first = torch.tensor(case.choices, dtype=torch.int32)
    scores = torch.rand(case.tokens, case.top_k, generator=torch.Generator().manual_seed(21)) + 0.5
    weights = scores / scores.sum(-1, keepdim=True)
    step = max(1, case.experts // TURNS)
    return tuple(Routing(weights, (first + turn * step) % case.experts) for turn in range(TURNS))


@dataclass
class ExpertsInputs:
    """hidden: [tokens, hidden]. turns: what each call computes, one after the other and then again."""

    case: ExpertsCase
    hidden: torch.Tensor
    layers: tuple[Layer, ...]
    routings: tuple[Routing, ...]

    @classmethod
    def of(cls, case: ExpertsCase) -> ExpertsInputs:
        """The same in every process; those of a backward require gradients."""
        layers = _layers(case.layers, case.experts, case.hidden, case.inter, case.dtype)
        with torch.inference_mode(False):
            hidden = _normal((case.tokens, case.hidden), 1.0, DTYPES[case.dtype], 20)
            routings = _routings(case)
            if case.work != "forward":
                layers = tuple(
                    Layer(layer.gate_up.detach().requires_grad_(), layer.down.detach().requires_grad_())
                    for layer in layers
                )
                routings = (Routing(routings[0].weights.requires_grad_(), routings[0].experts),)
                hidden.requires_grad_()
        return cls(case, hidden, layers, routings)

    @property
    def turns(self) -> Iterator[tuple[int, Routing]]:
        """Indices of layers, and routings; no fewer than there are layers."""
        count = math.lcm(len(self.layers), len(self.routings))
        return ((i % len(self.layers), self.routings[i % len(self.routings)]) for i in range(count))


def in_turn(calls: list[Call]) -> Call:
    """One call after the other, from the first again after the last."""
    turns = itertools.cycle(calls)
    return lambda: next(turns)()


def experts_of(hidden: torch.Tensor, gate_up: torch.Tensor, down: torch.Tensor) -> torch.Tensor:
    """One expert, as the formula says it: tokens [n, hidden] to [n, hidden]."""
    gate, up = (hidden @ gate_up.t()).chunk(2, dim=-1)
    return (F.silu(gate) * up) @ down.t()


def expected_rows(
    hidden: torch.Tensor, layer: Layer, routing: Routing, rows: torch.Tensor, weights: torch.Tensor
) -> torch.Tensor:
    """fp64 [len(rows), hidden]: the layer's output of these tokens. hidden, weights: theirs, in fp64."""
    gate_up, down = layer.gate_up.detach(), layer.down.detach()
    out = []
    for row, token in enumerate(rows.tolist()):
        chosen = routing.experts[token].tolist()
        parts = [
            w * experts_of(hidden[row : row + 1], gate_up[e].double(), down[e].double())
            for e, w in zip(chosen, weights[row])
        ]
        out.append(sum(parts))
    return torch.cat(out)


def checked_rows(case: ExpertsCase) -> torch.Tensor:
    """Tokens whose results are compared: the first, the last, and one between."""
    return torch.tensor(sorted({0, case.tokens // 2, case.tokens - 1}))


def tolerance_of(case: ExpertsCase) -> float:
    """Largest error, relative to the largest expected value, that still counts as the same computation."""
    return max(TOLERANCE[case.dtype], CODE_TOLERANCE.get(case.weight_dtype, 0.0))


def error_of(inputs: ExpertsInputs, output: torch.Tensor) -> float:
    """Largest error of the first turn's output, relative to the largest expected value, on a few tokens.

    Of codes: beside the weights that they were made from, so that their rounding is in it.
    """
    rows = checked_rows(inputs.case)
    layer, routing = next(inputs.turns)
    with torch.no_grad():
        weights = routing.weights[rows].double()
        expected = expected_rows(inputs.hidden[rows].double(), inputs.layers[layer], routing, rows, weights)
    return ((output[rows].double() - expected).abs().max() / expected.abs().max()).item()
