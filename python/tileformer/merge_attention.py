"""Attention over several sets of keys from the attention over each."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from tileformer import _paged_ops
from tileformer.paged_attention import refuse_gradients


def merge_attention_states(
    part_out: Sequence[torch.Tensor], part_lse: Sequence[torch.Tensor]
) -> tuple[torch.Tensor, torch.Tensor]:
    """The attention over all keys from the attention of the same queries over several sets of them: a prefix
    that sequences share and the rest, the pieces of a long sequence, the shards of several machines.

    Args:
        part_out: 1 to 256 tensors [batch, heads, seq, dim_v] or [heads, tokens, dim_v], float32, float16 or
            bfloat16, any strides, as flash_attention and paged_attention return them: [tokens, heads, dim_v]
            goes in as a transposed view. One tensor with the sets first will do.
        part_lse: as many float32 tensors [batch, heads, seq] or [heads, tokens], natural logarithm.

    A set whose lse is -inf, or +inf as FlashAttention's functions return it, saw nothing and has no
    influence. A sink has to be in one of the sets only. Sums are float32, in the order of the sets.

    Returns:
        (out, lse) of the union, out in the dtype and memory layout of part_out[0].

    Raises:
        ValueError: an argument does not fit. RuntimeError: a gradient is wanted.

    vLLM's merge_attn_states(output, prefix_output, prefix_lse, suffix_output, suffix_lse) merges two, with
    out as [tokens, heads, dim_v] and lse as [heads, tokens]; FlashInfer's merge_state(v_a, s_a, v_b, s_b) has
    lse as [tokens, heads], in base 2. Source: Milakov and Gimelshein, Online normalizer calculation (2018).
    """
    part_out = list(part_out)
    part_lse = [torch.where(lse == torch.inf, -torch.inf, lse) for lse in part_lse]
    if not part_out:
        raise ValueError("part_out is empty; needed are 1 to 256 parts")
    for out, lse in zip(part_out, part_lse):
        refuse_gradients("merge_attention_states", part_out=out, part_lse=lse)
    if part_out[0].dim() == 3:
        merged, merged_lse = _paged_ops.merge([t[None] for t in part_out], [t[None] for t in part_lse])
        return merged[0], merged_lse[0]
    return _paged_ops.merge(part_out, part_lse)
