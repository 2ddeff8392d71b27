"""The rows of a batch as sequences of a PagedKVCache, behind the cache that transformers sees.

transformers counts *columns*: position 0 of the longest row, padding included. Pages hold tokens: the padding
to the left of a row is not stored, and a row's token j lies in column start + j.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from tileformer.integrations.attention_mask import Visible
from tileformer.kv_cache import CacheFull, PagedKVCache
from tileformer.kv_step import Step


@dataclass(slots=True)
class BatchStep:
    """What one forward adds to a batch: made by its first layer, used by all."""

    step: Step
    queries: int  # columns that it adds
    fresh: bool  # the cache was empty before
    stored: torch.Tensor | None  # int64: which of batch * queries tokens are stored; None: all
    key_range: torch.Tensor | None  # int32 [batch, 2] in a row's own positions; None: all keys
    mask: tuple[torch.Tensor, torch.Tensor] | None = None  # the last mask seen, and the same per row


class PagedBatch:
    """ids[i] is the sequence of row i, starts[i] the column of its first token; columns counts all of them.

    seen[layer] is the number of columns that a layer holds: within a forward the layers differ by a step, and
    so they do after one that was interrupted. Its columns do not count, and take_back() takes them back.
    """

    def __init__(self, pool: PagedKVCache, layers: int) -> None:
        self.pool = pool
        self.ids: list[int] = []
        self.starts: list[int] = []
        self.columns = 0
        self.seen = [0] * layers
        self.step: BatchStep | None = None
        self.pending: int | None = None  # the layer whose attention has still to store what it was given
        self.whole = False  # the model is known to have as many layers as this

    @property
    def finished(self) -> int:
        """The columns that all layers hold."""
        return min(self.seen)

    # One forward

    def step_of(self, layer: int, batch: int, queries: int, key_range: torch.Tensor | None) -> BatchStep:
        """The step of this forward for one layer; the first that asks makes room for all.

        key_range: int32 [batch, 2], the columns that are not padding; None: all of them.
        """
        if self.seen[layer] == self.columns:
            self.step = self._extend(batch, queries, key_range)
        elif self.step is None or self.seen[layer] + queries != self.columns:
            raise RuntimeError(
                f"layer {layer} holds {self.seen[layer]} tokens of {self.columns}: a forward was interrupted "
                "or the model calls its layers another number of times; cache.reset() empties the cache"
            )
        return self.step

    def _extend(self, batch: int, queries: int, key_range: torch.Tensor | None) -> BatchStep:
        if not self.ids:
            self.ids = [self.pool.add() for _ in range(batch)]
            self.starts = [0] * batch
        elif len(self.ids) != batch:
            raise ValueError(f"the batch has {batch} rows, but the cache holds {len(self.ids)}")
        before, after = self.columns, self.columns + queries
        self.columns = after
        ranges = None if key_range is None else key_range.tolist()
        if ranges is not None and (before == 0 or max(self.starts) >= before):
            for row, (first, end) in enumerate(ranges):
                if self.starts[row] >= before:  # nothing but padding so far
                    self.starts[row] = first if first < end else after
        tokens = [after - min(after, max(before, start)) for start in self.starts]
        try:
            step = self.pool.extend(self.ids, tokens)
        except BaseException as error:
            self._cut(before)
            if not isinstance(error, CacheFull):
                raise
            raise CacheFull(
                f"{error}. A larger cache: PagedKVCache.for_model(model, max_tokens=...), with the tokens of "
                f"all {batch} rows together"
            ) from None
        stored = None
        if any(count != queries for count in tokens):
            columns = torch.arange(before, after)
            stored = (columns >= torch.tensor(self.starts)[:, None]).flatten().nonzero().flatten()
        own = None
        if ranges is not None and any(
            first > start or end < after for (first, end), start in zip(ranges, self.starts) if start < after
        ):
            own = key_range - torch.tensor(self.starts, dtype=torch.int32)[:, None]
        return BatchStep(step, queries, before == 0, stored, own)

    def append(self, layer: int, key: torch.Tensor, value: torch.Tensor, step: BatchStep) -> None:
        """Writes key [batch, kv_heads, queries, dim] and value into the layer's pages."""
        if step.stored is not None:
            key, value = (t.transpose(1, 2).flatten(0, 1)[step.stored] for t in (key, value))
        self.pool.append(layer, key, value, step.step)
        self.seen[layer] = self.columns
        self.whole = self.whole or layer == len(self.seen) - 1

    def attend(
        self, layer: int, query: torch.Tensor, step: BatchStep, seen: Visible, **options
    ) -> torch.Tensor:
        """Attention of query [batch, heads, queries, dim] over the pages; padding gets zeros."""
        options |= dict(
            causal="bottom_right" if seen.causal else False,
            window=(seen.left, seen.right),
            key_range=step.key_range if seen.mask is None else None,
            attn_mask=None if seen.mask is None else self._own_mask(seen.mask, step),
        )
        if step.stored is None:
            return self.pool.attend(layer, query, step.step, **options)
        tokens = query.transpose(1, 2).flatten(0, 1)
        out = self.pool.attend(layer, tokens[step.stored], step.step, **options)
        full = out.new_zeros(tokens.shape[0], *out.shape[1:])
        full[step.stored] = out
        return full.unflatten(0, (query.shape[0], -1)).transpose(1, 2)

    def _own_mask(self, mask: torch.Tensor, step: BatchStep) -> torch.Tensor:
        """A mask [batch | 1, heads | 1, queries | 1, columns] as one over each row's own keys."""
        if step.mask is not None and step.mask[0] is mask:
            return step.mask[1]
        own = mask
        if step.stored is not None and mask.shape[2] > 1:
            raise ValueError(
                "attention_mask is dense and rows begin within this chunk of the prompt; allowed is a "
                "padding mask [batch, keys], or a dense one once every row has begun"
            )
        if any(self.starts):
            starts = torch.tensor(self.starts)
            longest = self.columns - int(starts.min())
            columns = (torch.arange(longest) + starts[:, None]).clamp_(max=self.columns - 1)
            own = mask.expand(len(self.ids), -1, -1, -1).gather(
                3, columns[:, None, None].expand(-1, *mask.shape[1:3], -1)
            )
        step.mask = mask, own
        return own

    def gather(self, layer: int, like: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Dense copies of keys and values [batch, kv_heads, columns, dim], zeros where padding was."""
        rows = [self.pool.gather(layer, id) for id in self.ids]
        full = []
        for parts in zip(*rows):
            out = like.new_zeros(len(rows), parts[0].shape[0], self.columns, parts[0].shape[2])
            for row, part in enumerate(parts):
                out[row, :, self.columns - part.shape[1] :] = part
            full.append(out)
        return full[0], full[1]

    # Between forwards

    def take_back(self) -> None:
        """Takes back what a forward has added that did not reach the last layer."""
        self.pending = None
        if self.finished == self.columns:
            return
        if not self.whole:  # an interruption looks like a model of fewer layers, which would lose every step
            raise ValueError(
                f"the first forward ended after {sum(map(bool, self.seen))} layers, the cache has "
                f"{len(self.seen)}: it was interrupted, and cache.reset() makes the cache usable; or "
                "the cache was made for another model"
            )
        self._cut(self.finished)

    def select(self, rows: Sequence[int]) -> None:
        """Row i becomes what row rows[i] is. One that is chosen again shares the pages of the first."""
        self.take_back()
        if not self.ids or list(rows) == list(range(len(self.ids))):
            return
        ids, taken = [], set()
        for row in rows:
            ids.append(self.pool.fork(self.ids[row]) if row in taken else self.ids[row])
            taken.add(row)
        for row, id in enumerate(self.ids):
            if row not in taken:
                self.pool.free(id)
        self.starts = [self.starts[row] for row in rows]
        self.ids, self.step = ids, None

    def trim(self, columns: int) -> None:
        """Forgets the last `columns` columns, after those of a forward that did not end."""
        self.take_back()
        if columns > 0 and self.ids:
            self._cut(max(0, self.columns - columns))

    def _cut(self, columns: int) -> None:
        if columns == 0:  # nothing is left that would bind the next forward to these rows
            return self.reset()
        self.columns = columns
        for id, start in zip(self.ids, self.starts):
            self.pool.trim(id, min(self.pool.length(id), max(0, columns - start)))
        self.starts = [min(start, self.columns) for start in self.starts]
        self.seen = [self.columns] * len(self.seen)
        self.step = None

    def reset(self) -> None:
        """Frees all rows; the next forward may bring another batch."""
        for id in self.ids:
            self.pool.free(id)
        self.ids, self.starts, self.columns, self.step, self.pending = [], [], 0, None, None
        self.seen, self.whole = [0] * len(self.seen), False

    def fork(self) -> PagedBatch:
        """The same rows once more, in the same pages."""
        self.take_back()
        other = PagedBatch(self.pool, len(self.seen))
        other.ids = [self.pool.fork(id) for id in self.ids]
        other.starts, other.columns, other.seen = list(self.starts), self.columns, list(self.seen)
        other.whole = self.whole
        return other
