"""One training-loss problem of the benchmark: hidden states, the weight of lm_head, and targets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch

from bench.inputs import DTYPES

Loss = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class LossCase:
    """Mean cross-entropy of hidden [rows, hidden] times weight [vocab, hidden], forward and backward."""

    rows: int
    hidden: int
    vocab: int
    dtype: str = "fp32"
    threads: int = 1

    def with_(self, **changes: Any) -> LossCase:
        """The same case with some fields changed."""
        return replace(self, **changes)

    def to_json(self) -> dict[str, Any]:
        """Plain values; LossCase(**case.to_json()) == case."""
        return asdict(self)

    @property
    def flops(self) -> int:
        """Of the three products: logits, and the gradients of hidden and weight."""
        return 6 * self.rows * self.hidden * self.vocab

    @property
    def label(self) -> str:
        """What a table row is called."""
        return f"{self.rows}x{self.hidden}x{self.vocab} {self.dtype}"


@dataclass
class LossInputs:
    """Leaves that collect gradients, and targets of which none is ignored."""

    hidden: torch.Tensor
    weight: torch.Tensor
    target: torch.Tensor

    @classmethod
    def of(cls, case: LossCase) -> LossInputs:
        """Normal random data from a fixed seed."""
        generator = torch.Generator().manual_seed(20)
        hidden = torch.randn(case.rows, case.hidden, generator=generator).to(DTYPES[case.dtype])
        weight = (0.05 * torch.randn(case.vocab, case.hidden, generator=generator)).to(DTYPES[case.dtype])
        target = torch.randint(0, case.vocab, (case.rows,), generator=generator)
        return cls(hidden.requires_grad_(), weight.requires_grad_(), target)

    def step(self, loss: Loss) -> Callable[[], torch.Tensor]:
        """A call that makes the loss and both gradients anew and returns that of hidden."""

        def call() -> torch.Tensor:
            with torch.inference_mode(False):  # workers run in it
                self.hidden.grad = self.weight.grad = None
                loss(self.hidden, self.weight, self.target).backward()
                return self.hidden.grad

        return call

    def error_of(self, gradient: torch.Tensor) -> float:
        """Largest error of hidden's gradient in three rows, relative to the largest expected value."""
        rows = torch.tensor([0, len(self.target) // 2, len(self.target) - 1])
        weight = self.weight.detach().double()
        p = (self.hidden.detach()[rows].double() @ weight.t()).softmax(-1)
        p[torch.arange(3), self.target[rows]] -= 1
        expected = p @ weight / len(self.target)
        return ((gradient[rows].double() - expected).abs().max() / expected.abs().max()).item()
