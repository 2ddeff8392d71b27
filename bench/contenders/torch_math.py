"""Unfused attention: two matrix products and a softmax with all scores in memory, as torch composes it."""

from __future__ import annotations

from torch.nn.attention import SDPBackend

from bench.contenders import torch_flash


class Implementation(torch_flash.Implementation):
    """F.scaled_dot_product_attention with only the math backend allowed."""

    backend = SDPBackend.MATH
