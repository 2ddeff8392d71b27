"""Rows of equal length without padding, cut from the stream of tokens, in an order that the seed fixes.

A row is `sequence_length` tokens of the stream. Where a document begins within a row, positions start at 0
again; transformers (and tileformer's integration) takes that for a border that attention does not cross. A
document longer than the rest of its row goes on in another row as a sequence of its own.

The batch of a step depends on nothing but the stream, the settings and the number of the step: a resumed run
needs no other position than that.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tileformer.training.errors import TrainingError

if TYPE_CHECKING:
    import torch

    from tileformer.training.tokens import TokenStream

IGNORED = -100  # label that transformers' losses leave out


@dataclass(frozen=True)
class Batch:
    """What the model is called with; all [batch, seq], int64."""

    input_ids: torch.Tensor
    position_ids: torch.Tensor  # from 0 in every sequence
    labels: (
        torch.Tensor
    )  # input_ids, the first token of each sequence IGNORED: nothing in its row predicts it

    @property
    def tokens(self) -> int:
        return self.input_ids.numel()


class PackedRows:
    """The rows of a stream in the order in which steps take them. Raises TrainingError if there is none."""

    def __init__(self, stream: TokenStream, sequence_length: int, batch_size: int, seed: int) -> None:
        import torch

        self.sequence_length, self.batch_size, self.seed = sequence_length, batch_size, seed
        self.key = stream.key
        self.count = len(stream.tokens) // sequence_length
        if self.count == 0:
            raise TrainingError(
                f"the text has {len(stream.tokens)} tokens, fewer than one row of --sequence-length "
                f"{sequence_length}"
            )
        self._tokens = torch.from_numpy(stream.tokens)
        self._begins = torch.zeros(len(stream.tokens) + 1, dtype=torch.bool)
        self._begins[torch.from_numpy(stream.starts)] = True
        self._order: tuple[int, torch.Tensor] | None = None

    def batch(self, step: int) -> Batch:
        """The rows of a step, counted from 0. Each row comes once before any comes again."""
        import torch

        first = step * self.batch_size
        rows = [self._row(index) for index in range(first, first + self.batch_size)]
        parts = [slice(row * self.sequence_length, (row + 1) * self.sequence_length) for row in rows]
        input_ids = torch.stack([self._tokens[part] for part in parts]).long()
        begins = torch.stack([self._begins[part] for part in parts])
        begins[:, 0] = True
        places = torch.arange(self.sequence_length).expand_as(input_ids)
        position_ids = places - torch.where(begins, places, 0).cummax(1).values
        return Batch(input_ids, position_ids, input_ids.masked_fill(begins, IGNORED))

    def _row(self, index: int) -> int:
        """Which row comes at a place of the endless sequence of rows."""
        import torch

        epoch, place = divmod(index, self.count)
        if self._order is None or self._order[0] != epoch:
            generator = torch.Generator().manual_seed(self.seed * 1_000_003 + epoch)
            self._order = epoch, torch.randperm(self.count, generator=generator)
        return int(self._order[1][place])
