"""torch.nn.functional.linear and cross_entropy, all logits in memory."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from bench.loss_case import Loss


class Implementation:
    def describe(self) -> dict[str, str]:
        return {"version": torch.__version__}

    def loss(self) -> Loss:
        return lambda hidden, weight, target: F.cross_entropy(F.linear(hidden, weight).float(), target)
