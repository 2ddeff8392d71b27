"""What one step of a PagedKVCache adds, and where: made once, used by every layer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from tileformer import _paged_ops


class Step(NamedTuple):
    """The tokens that one step adds to some sequences, as PagedKVCache.extend returned them.

    Tokens of the sequences stand one after the other, in the order of `ids`.
    """

    slots: torch.Tensor  # int64 [tokens]: page * page_size + row of every token
    positions: torch.Tensor  # int64 [tokens]: of every token in its sequence, from 0
    block_table: torch.Tensor  # int32 [sequences, columns], -1 behind a sequence's last page
    key_lengths: torch.Tensor  # int32 [sequences]: tokens of each sequence, these included
    cu_seqlens: torch.Tensor  # int32 [sequences + 1]: where the tokens of each sequence begin in the step
    ids: Sequence[int]
    shrinks: int  # how often the cache had let tokens go when the step was made

    @staticmethod
    def of(
        buffer: bytearray, tokens: int, sequences: int, columns: int, ids: Sequence[int], shrinks: int
    ) -> Step:
        """From the memory that the core filled: the five tensors one after the other."""

        def part(dtype: torch.dtype, count: int, offset: int) -> torch.Tensor:
            if count == 0:
                return torch.empty(0, dtype=dtype)
            return torch.frombuffer(buffer, dtype=dtype, count=count, offset=offset)

        i64, i32, blocks = torch.int64, torch.int32, sequences * columns
        at = 16 * tokens
        return Step(
            part(i64, tokens, 0),
            part(i64, tokens, 8 * tokens),
            part(i32, blocks, at).view(sequences, columns),
            part(i32, sequences, at + 4 * blocks),
            part(i32, sequences + 1, at + 4 * (blocks + sequences)),
            ids,
            shrinks,
        )


class Rotary(NamedTuple):
    """Rotary embedding of the first rotary_dim elements of keys and queries (Su et al., RoFormer, 2021)."""

    cos: torch.Tensor  # [positions, rotary_dim / 2], float32 or the dtype of what is rotated
    sin: torch.Tensor  # the same
    interleaved: bool = False  # pairs (2i, 2i + 1) as in GPT-J; otherwise (i, i + rotary_dim / 2) as in NeoX
    positions: torch.Tensor | None = None  # int64 [tokens], rows of cos; default: the step's

    def arguments(self, step: Step) -> tuple:
        """The operators' arguments: cos, sin, positions, interleaved."""
        return self.cos, self.sin, self.positions_of(step), self.interleaved

    def positions_of(self, step: Step) -> torch.Tensor:
        return step.positions if self.positions is None else self.positions

    def rotate(self, query: torch.Tensor, step: Step) -> torch.Tensor:
        """query [tokens, heads, dim] or [batch, heads, seq, dim], rotated."""
        if query.dim() == 3:
            return _paged_ops.rotary(query, *self.arguments(step))
        tokens = query.transpose(1, 2)
        rotated = _paged_ops.rotary(tokens.flatten(0, 1), *self.arguments(step))
        return rotated.unflatten(0, tokens.shape[:2]).transpose(1, 2)
