"""tileformer.linear_cross_entropy."""

from __future__ import annotations

from bench.contenders import tileformer_attention
from bench.loss_case import Loss


class Implementation(tileformer_attention.Implementation):
    def loss(self) -> Loss:
        return self.tileformer.linear_cross_entropy
