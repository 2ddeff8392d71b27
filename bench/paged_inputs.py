"""Random keys, values and queries of a cache, page tables in no order, and what a few rows should be."""

from __future__ import annotations

import functools
import math
import mmap
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from bench.inputs import DTYPES, TOLERANCE
from bench.paged_case import AppendCase, PagedCase

CACHE_DTYPES = {**DTYPES, "int8": torch.int8, "e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}
# Of rounding to so few bits; there to refuse what computes something else, see bench/inputs.py.
CODE_TOLERANCE = {"int8": 5e-2, "e4m3": 1e-1, "e5m2": 2e-1}
HUGE_PAGE = 2 << 20

_PERIOD = 1048573
# Random bits become numbers with the exponents of [0.5, 1), any sign and mantissa: some ten times as fast as
# normal ones are drawn. What is kept of the bits, and what is set, in a word of 64.
_NUMBERS = {
    "fp32": (0x807FFFFF807FFFFF, 0x3F0000003F000000),
    "bf16": (0x807F807F807F807F, 0x3F003F003F003F00),
    "fp16": (0x83FF83FF83FF83FF, 0x3800380038003800),
}


@dataclass
class PagedCall:
    """What a contender prepared. run: the call to time. output: runs it and returns what is to be checked.

    output: [queries of all sequences, heads, dim], or of an append the float key and value rows of
    checked_tokens, [2, tokens, kv_heads, dim]; None where it cannot be told. cache_bytes: of the pools.
    """

    run: Callable[[], Any]
    output: Callable[[], torch.Tensor] | None
    cache_bytes: int


def tolerance_of(case: PagedCase | AppendCase) -> float:
    """Largest error, relative to the largest expected value, that still counts as the same computation."""
    return max(TOLERANCE[case.dtype], CODE_TOLERANCE.get(case.cache_dtype, 0.0))


def huge_tensor(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Uninitialised, on huge pages where the system grants them: with small ones all contenders, the peers
    too, lose time to page walks that a server would not spend.
    """
    nbytes = math.prod(shape) * dtype.itemsize
    memory = mmap.mmap(-1, nbytes + 2 * HUGE_PAGE)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    whole = torch.frombuffer(memory, dtype=torch.uint8)  # keeps the mapping alive
    first = -whole.data_ptr() % HUGE_PAGE
    return whole[first : first + nbytes].view(dtype).view(shape)


def _signed(bits: int) -> int:
    return bits - (1 << 64) if bits >> 63 else bits


def random_numbers(shape: tuple[int, ...], dtype: str, seed: int) -> torch.Tensor:
    """Of magnitude [0.5, 1) and either sign; the same in every process.

    8 MiB of them, again and again: as the period is a prime number of words, no two rows are alike.
    """
    keep, put = _NUMBERS[dtype]
    block = torch.empty(_PERIOD, dtype=torch.int64)
    block.random_(-(1 << 63), None, generator=torch.Generator().manual_seed(seed))
    block.bitwise_and_(_signed(keep)).bitwise_or_(_signed(put))
    out = huge_tensor(shape, DTYPES[dtype])
    numbers = block.view(DTYPES[dtype])
    for part in out.view(-1).split(numbers.numel()):
        part.copy_(numbers[: part.numel()])
    return out


# Variants of a row have the same keys and values: made once for all of them.
@functools.lru_cache(maxsize=2)
def _keys_and_values(tokens: int, kv_heads: int, dim: int, dtype: str) -> tuple[torch.Tensor, torch.Tensor]:
    shape = tokens, kv_heads, dim
    return random_numbers(shape, dtype, 20), random_numbers(shape, dtype, 21)


def forget() -> None:
    """Frees the keys and values that are kept for the next variant."""
    _keys_and_values.cache_clear()


def scattered_pages(lengths: tuple[int, ...], page: int) -> torch.Tensor:
    """int32 [sequences, columns]: a block table whose pages lie in no order; -1 behind a sequence's last."""
    counts = [math.ceil(length / page) for length in lengths]
    order = torch.randperm(sum(counts), generator=torch.Generator().manual_seed(22), dtype=torch.int32)
    table = torch.full((len(counts), max(counts)), -1, dtype=torch.int32)
    for row, own in zip(table, order.split(counts)):
        row[: len(own)] = own
    return table


@dataclass
class PagedInputs:
    """Tokens of all sequences one after the other: query [sum of queries, heads, dim], key and value [sum of
    lengths, kv_heads, dim] of the queries' dtype. lengths: int32 [sequences].
    """

    case: PagedCase | AppendCase
    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    lengths: torch.Tensor

    @classmethod
    def of(cls, case: PagedCase | AppendCase) -> PagedInputs:
        """The same in every process."""
        rows = (sum(case.queries), case.heads) if isinstance(case, PagedCase) else (0, 1)
        key, value = _keys_and_values(sum(case.lengths), case.kv_heads, case.dim, case.dtype)
        query = random_numbers((*rows, case.dim), case.dtype, 23)
        return cls(case, query, key, value, torch.tensor(case.lengths, dtype=torch.int32))

    def table(self, page: int) -> torch.Tensor:
        """A block table for pages of this size."""
        return scattered_pages(self.case.lengths, page)

    def slots(self, page: int) -> torch.Tensor:
        """int64: page * page size + row of every token."""
        table = self.table(page).long()
        tokens = [torch.arange(length) for length in self.case.lengths]
        return torch.cat([row[t // page] * page + t % page for row, t in zip(table, tokens)])

    @property
    def starts(self) -> torch.Tensor:
        """int32 [sequences + 1]: where the queries of each sequence begin."""
        queries = torch.tensor([0, *self.case.queries], dtype=torch.int32)
        return queries.cumsum(0, dtype=torch.int32)

    def dense(self, tokens: torch.Tensor) -> torch.Tensor:
        """Keys or values of sequences of one length as [batch, kv_heads, length, dim]."""
        rows = tokens.view(len(self.case.lengths), -1, *tokens.shape[1:]).transpose(1, 2)
        return huge_tensor(tuple(rows.shape), tokens.dtype).copy_(rows)

    def dense_query(self) -> torch.Tensor:
        """[batch, heads, queries, dim], for sequences with as many queries each."""
        return self.query.view(len(self.case.lengths), -1, *self.query.shape[1:]).transpose(1, 2)


def checked_tokens(case: AppendCase) -> torch.Tensor:
    """Tokens of an append whose rows are compared: the first, the last, and one between."""
    tokens = case.batch * case.tokens
    return torch.tensor([0, tokens // 2, tokens - 1])


def error_of(inputs: PagedInputs, output: torch.Tensor) -> float:
    """Largest error relative to the largest expected value, over what is checked; see PagedCall.output."""
    expected, found = [], []
    case = inputs.case
    if isinstance(case, AppendCase):
        rows = checked_tokens(case)
        expected, found = [inputs.key[rows], inputs.value[rows]], list(output)
    else:
        ends = torch.tensor(case.lengths).cumsum(0).tolist()
        starts = inputs.starts.tolist()
        for n in {0, len(case.lengths) // 2, len(case.lengths) - 1}:
            keys = slice(ends[n] - case.lengths[n], ends[n])
            for q in {0, case.queries[n] - 1}:
                seen = slice(keys.start, keys.stop - (case.queries[n] - 1 - q))
                expected.append(_attention(inputs.query[starts[n] + q], inputs.key[seen], inputs.value[seen]))
                found.append(output[starts[n] + q])
    largest = max(e.abs().max().item() for e in expected)
    return max((f.double() - e).abs().max().item() for f, e in zip(found, expected)) / largest


def _attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """fp64 [heads, dim]: one token's query [heads, dim] over key and value [keys, kv_heads, dim]."""
    out = []
    groups = query.double().unflatten(0, (key.shape[1], -1))
    for head, rows in enumerate(groups):  # a head at a time: the keys in fp64 are four times the cache
        scores = rows @ key[:, head].double().t() / math.sqrt(query.shape[-1])
        out.append(scores.softmax(-1) @ value[:, head].double())
    return torch.cat(out)
