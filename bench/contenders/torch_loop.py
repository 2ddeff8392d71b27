"""transformers' eager experts: a loop over the experts, two linear layers for each."""

from __future__ import annotations

from bench.contenders import torch_grouped


class Implementation(torch_grouped.Implementation):
    name = "eager"
