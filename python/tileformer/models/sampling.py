"""Chooses the next token from the logits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Sampling:
    """How the next token is chosen.

    temperature 0 takes the most likely token. Otherwise one is drawn from the smallest set of most likely
    tokens whose probability at ``temperature`` reaches ``top_p`` (Holtzman et al. 2019). Without ``seed``,
    differently each time.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    seed: int | None = None


GREEDY = Sampling()


class Sampler:
    """Draws tokens as ``sampling`` says, each call the next of one random sequence."""

    def __init__(self, sampling: Sampling) -> None:
        import torch

        self.sampling = sampling
        self.generator = torch.Generator()
        if sampling.seed is None:
            self.generator.seed()
        else:
            self.generator.manual_seed(sampling.seed)

    def __call__(self, logits: torch.Tensor) -> int:
        """logits: [vocabulary], any floating dtype."""
        import torch

        if self.sampling.temperature == 0:
            return int(logits.argmax())
        probabilities = torch.softmax(logits.float() / self.sampling.temperature, dim=-1)
        if self.sampling.top_p < 1:
            sorted_probabilities, order = probabilities.sort(descending=True)
            before = sorted_probabilities.cumsum(-1) - sorted_probabilities
            probabilities = probabilities.index_fill(0, order[before >= self.sampling.top_p], 0.0)
        return int(torch.multinomial(probabilities, 1, generator=self.generator))
