"""One attention problem of the benchmark: its shape, its options, and how much useful work it is."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar


@dataclass(frozen=True)
class AttentionCase:
    """Self-attention over `seq` tokens; every option has its off value as default.

    mask: "" | "bool" (dense [seq, seq], 90 % true) | "float" (dense bias of the inputs' dtype)
        | "padding" (bool [batch, 1, 1, seq], the last quarter of the keys hidden).
    window: (left, right), inclusive, -1 = unlimited.
    key_growth: key j is multiplied by 1 + key_growth * j, so that the running maximum keeps moving.
    """

    dim: int
    seq: int
    heads: int = 1
    kv_heads: int = 0  # 0: as many as heads
    batch: int = 1
    dtype: str = "bf16"
    causal: bool = False
    window: tuple[int, int] = (-1, -1)
    mask: str = ""
    softcap: float = 0.0
    alibi: bool = False
    sinks: bool = False
    key_growth: float = 0.0
    threads: int = 1
    backward: bool = False  # the gradients of query, key and value are computed, from a forward done before

    request: ClassVar[str] = "prepare"  # of worker.py
    traffic_bytes: ClassVar[int] = 0  # products decide here, not memory
    # Of the buffer that bandwidth is measured on, where a row needs it: beyond every cache.
    stream_bytes: ClassVar[int] = 256 << 20

    def __post_init__(self) -> None:
        object.__setattr__(self, "kv_heads", self.kv_heads or self.heads)
        object.__setattr__(self, "window", tuple(self.window))

    def with_(self, **changes: Any) -> AttentionCase:
        """The same case with some fields changed."""
        return replace(self, **changes)

    def to_json(self) -> dict[str, Any]:
        """Plain values; AttentionCase(**case.to_json()) == case."""
        return asdict(self)

    @property
    def pairs(self) -> int:
        """Query-key pairs of one head that attend, by causality, window and padding."""
        left, right = self.window
        right = 0 if self.causal else right
        keys = self.padded_keys if self.mask == "padding" else self.seq
        total = 0
        for query in range(self.seq):
            first = 0 if left < 0 else max(0, query - left)
            end = keys if right < 0 else min(keys, query + right + 1)
            total += max(0, end - first)
        return total

    @property
    def padded_keys(self) -> int:
        """Keys that a padding mask leaves."""
        return self.seq * 3 // 4

    @property
    def flops(self) -> int:
        """Useful operations of the two products (backward: five); causal counts half of full (and its
        diagonal)."""
        return (10 if self.backward else 4) * self.batch * self.heads * self.pairs * self.dim

    @property
    def mask_bytes(self) -> int:
        """Bytes of the mask as it is given."""
        dense = self.seq**2
        bias = dense * (4 if self.dtype == "fp32" else 2)
        return {"": 0, "bool": dense, "float": bias, "padding": self.batch * self.seq}[self.mask]

    @property
    def label(self) -> str:
        """Short and complete: what a table row is called."""
        heads = str(self.heads) if self.heads == self.kv_heads else f"{self.heads}/{self.kv_heads}"
        words = [f"{self.batch}x{heads}x{self.seq}x{self.dim}", self.dtype]
        words += ["backward"] if self.backward else []
        words.append("causal" if self.causal else "full")
        if self.window != (-1, -1):
            words.append("window=" + ",".join(str(w) for w in self.window))
        if self.mask:
            words.append(f"{self.mask}-mask")
        words += [f"softcap={self.softcap:g}"] if self.softcap else []
        words += ["alibi"] if self.alibi else []
        words += ["sinks"] if self.sinks else []
        words += [f"growth={self.key_growth:g}"] if self.key_growth else []
        return " ".join(words)
