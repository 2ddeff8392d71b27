"""Problems over a KV cache: attending, from decode to prefill (PagedCase), and writing (AppendCase)."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar

# Bytes of an element; types of one byte also have a float32 scale for each token and head.
ITEM_BYTES = {"fp32": 4, "fp16": 2, "bf16": 2, "int8": 1, "e4m3": 1, "e5m2": 1}
SCALE_BYTES = 4
LAYOUTS = ("pages", "flash", "contiguous")


def row_bytes(dtype: str, dim: int) -> int:
    """Of one token's key (or value) of one head, with its scale."""
    item = ITEM_BYTES[dtype]
    return dim * item + (SCALE_BYTES if item == 1 else 0)


def lengths_text(lengths: tuple[int, ...]) -> str:
    """One length, or the range."""
    low, high = min(lengths), max(lengths)
    return str(low) if low == high else f"{low}..{high}"


@dataclass(frozen=True)
class PagedCase:
    """Sequences with lengths[i] keys each, whose last queries[i] tokens attend causally.

    queries: one number holds for every sequence; 1 is decode.
    layout: "pages" (a PagedKVCache) | "flash" ([pages, page, kv_heads, dim], as FlashAttention has it, in
        tensors of the caller) | "contiguous" (no pages). Peers have their own, as scattered as ours.
    cache_dtype: "" is dtype, that of the queries.
    """

    dim: int
    heads: int
    kv_heads: int
    lengths: tuple[int, ...]
    queries: int | tuple[int, ...] = 1
    dtype: str = "bf16"
    cache_dtype: str = ""
    layout: str = "pages"
    page: int = 64
    threads: int = 1

    request: ClassVar[str] = "prepare_paged"  # of worker.py
    bandwidth: ClassVar[str] = "read"
    mask_bytes: ClassVar[int] = 0

    def __post_init__(self) -> None:
        lengths = tuple(self.lengths)
        queries = (self.queries,) * len(lengths) if isinstance(self.queries, int) else tuple(self.queries)
        object.__setattr__(self, "lengths", lengths)
        object.__setattr__(self, "queries", queries)
        object.__setattr__(self, "cache_dtype", self.cache_dtype or self.dtype)
        assert self.layout in LAYOUTS and len(queries) == len(lengths)

    def with_(self, **changes: Any) -> PagedCase:
        """The same case with some fields changed; a cache of the queries' dtype follows it."""
        if "dtype" in changes and self.cache_dtype == self.dtype:
            changes.setdefault("cache_dtype", "")
        return replace(self, **changes)

    def to_json(self) -> dict[str, Any]:
        """Plain values; PagedCase(**case.to_json()) == case."""
        return asdict(self)

    @property
    def is_decode(self) -> bool:
        return set(self.queries) == {1}

    @property
    def is_even(self) -> bool:
        """All sequences alike, so that peers can take them as one batch."""
        return len(set(zip(self.lengths, self.queries))) == 1

    @property
    def pairs(self) -> int:
        """Query-key pairs of one head that attend."""
        return sum(q * keys - q * (q - 1) // 2 for q, keys in zip(self.queries, self.lengths))

    @property
    def flops(self) -> int:
        """Of the two products, useful ones only."""
        return 4 * self.heads * self.dim * self.pairs

    @property
    def cache_bytes(self) -> int:
        """Of the keys and values that are attended to, read once."""
        return sum(self.lengths) * self.kv_heads * 2 * row_bytes(self.cache_dtype, self.dim)

    @property
    def traffic_bytes(self) -> int:
        """What memory has to deliver; 0 where products, not memory, decide: only decode is judged by it."""
        return self.cache_bytes if self.is_decode else 0

    @property
    def stream_bytes(self) -> int:
        """The buffer on which bandwidth is measured."""
        return self.traffic_bytes

    @property
    def label(self) -> str:
        """Short and complete: batch x heads x keys x dim, what is done, dtypes, layout."""
        shape = f"{len(self.lengths)}x{self.heads}/{self.kv_heads}x{lengths_text(self.lengths)}x{self.dim}"
        words = [shape, self.dtype]
        if self.cache_dtype != self.dtype:
            words.append(f"{self.cache_dtype}-cache")
        if self.is_decode:
            words.append("decode")
        elif self.queries == self.lengths:
            words.append("prefill")
        else:
            words.append(f"{lengths_text(self.queries)} new")
        words += [{"flash": "FA-layout"}.get(self.layout, self.layout)] if self.layout != "pages" else []
        words += [f"page={self.page}"] if self.page != 64 else []
        return " ".join(words)


@dataclass(frozen=True)
class AppendCase:
    """Keys and values of `tokens` new tokens for each of `batch` sequences, written into scattered pages."""

    dim: int
    kv_heads: int
    tokens: int
    batch: int = 1
    dtype: str = "bf16"
    cache_dtype: str = ""
    page: int = 64
    threads: int = 1

    request: ClassVar[str] = "prepare_append"
    bandwidth: ClassVar[str] = "write"
    mask_bytes: ClassVar[int] = 0
    flops: ClassVar[int] = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "cache_dtype", self.cache_dtype or self.dtype)

    def with_(self, **changes: Any) -> AppendCase:
        """The same case with some fields changed."""
        return replace(self, **changes)

    def to_json(self) -> dict[str, Any]:
        """Plain values; AppendCase(**case.to_json()) == case."""
        return asdict(self)

    @property
    def lengths(self) -> tuple[int, ...]:
        return (self.tokens,) * self.batch

    @property
    def traffic_bytes(self) -> int:
        """What is written; what is read for it does not count."""
        return self.batch * self.tokens * self.kv_heads * 2 * row_bytes(self.cache_dtype, self.dim)

    @property
    def stream_bytes(self) -> int:
        """The buffer on which bandwidth is measured."""
        return self.traffic_bytes

    @property
    def label(self) -> str:
        """batch x kv heads x new tokens x dim, and what becomes what."""
        return (
            f"{self.batch}x{self.kv_heads}x{self.tokens}x{self.dim} append {self.dtype} to {self.cache_dtype}"
        )
