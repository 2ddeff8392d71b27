"""Problems of mixture of experts: the layer (ExpertsCase), and choice and order of its tokens (RouteCase)."""

from __future__ import annotations

import functools
import math
import random
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

ITEM_BYTES = {"fp32": 4, "fp16": 2, "bf16": 2, "int8": 1, "int4": 0.5}
SCALE_BYTES = 4
WORK = {"forward": 1, "backward": 2, "step": 3}  # in units of the forward's products
# Up to so many tokens a row is (also) about reading weights; with more only its products count.
FEW_TOKENS = 64
# Weights that are read again after so many times the last-level cache come from memory.
COLD = 4
MOST_LAYERS = 32  # which only problems of tests would need more than
USUAL_CACHE = 32 << 20  # where the system does not tell


@functools.cache
def last_level_cache() -> int:
    """Bytes of the largest cache that the first CPU sees."""
    sizes = Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size")
    units = {"K": 1 << 10, "M": 1 << 20}
    texts = [path.read_text().strip() for path in sizes]
    return max((int(text[:-1]) * units[text[-1]] for text in texts), default=USUAL_CACHE)


@functools.lru_cache(maxsize=4)
def choices(tokens: int, experts: int, top_k: int) -> tuple[tuple[int, ...], ...]:
    """The experts of each token, any as likely as the others: uneven, as in a layer, and always the same."""
    generator = random.Random(20)
    return tuple(tuple(generator.sample(range(experts), top_k)) for _ in range(tokens))


@dataclass(frozen=True)
class ExpertsCase:
    """`tokens` go through the top_k of `experts` SwiGLU experts each: hidden -> 2 x inter -> hidden.

    weight_dtype: "" is dtype, that of the tokens; "int8" has a scale for each output channel, "int4" one for
        each `group` of neighbours along the input.
    work: "forward" | "backward" (gradients of tokens, weights and routing weights, from a forward done
        before) | "step" (both).
    """

    tokens: int
    hidden: int
    inter: int
    experts: int
    top_k: int
    dtype: str = "bf16"
    weight_dtype: str = ""
    group: int = 64
    work: str = "forward"
    threads: int = 1

    request: ClassVar[str] = "prepare_experts"  # of worker.py
    bandwidth: ClassVar[str] = "read"
    mask_bytes: ClassVar[int] = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "weight_dtype", self.weight_dtype or self.dtype)
        assert self.work in WORK

    def with_(self, **changes: Any) -> ExpertsCase:
        """The same case with some fields changed; weights of the tokens' dtype follow it."""
        if "dtype" in changes and self.weight_dtype == self.dtype:
            changes.setdefault("weight_dtype", "")
        return replace(self, **changes)

    def to_json(self) -> dict[str, Any]:
        """Plain values; ExpertsCase(**case.to_json()) == case."""
        return asdict(self)

    @property
    def is_quantized(self) -> bool:
        return self.weight_dtype != self.dtype

    @property
    def choices(self) -> tuple[tuple[int, ...], ...]:
        """Of tokens' experts."""
        return choices(self.tokens, self.experts, self.top_k)

    @property
    def touched(self) -> int:
        """Experts that have a token."""
        return len({expert for chosen in self.choices for expert in chosen})

    @property
    def flops(self) -> int:
        """Two operations for each of the 3 * hidden * inter weights of a token's experts."""
        return WORK[self.work] * 6 * self.tokens * self.top_k * self.hidden * self.inter

    @property
    def expert_bytes(self) -> int:
        """The weights of one expert, with the scales that codes have."""
        elements = 3 * self.hidden * self.inter
        scales = {"int8": 2 * self.inter + self.hidden, "int4": elements // self.group}
        return int(elements * ITEM_BYTES[self.weight_dtype]) + SCALE_BYTES * scales.get(self.weight_dtype, 0)

    @property
    def traffic_bytes(self) -> int:
        """The weights of the touched experts, read once; 0 where products, not memory, decide."""
        is_few = self.work == "forward" and self.tokens <= FEW_TOKENS
        return self.touched * self.expert_bytes if is_few else 0

    @property
    def layers(self) -> int:
        """Weight sets that calls use by turns, so that few tokens find them in no cache."""
        if not self.traffic_bytes:
            return 1
        needed = math.ceil(COLD * last_level_cache() / (self.experts * self.expert_bytes))
        return min(needed, MOST_LAYERS)

    @property
    def stream_bytes(self) -> int:
        """The buffer on which bandwidth is measured: as much as the calls go through."""
        return self.layers * self.experts * self.expert_bytes

    @property
    def label(self) -> str:
        """tokens x hidden x inter, experts, dtypes, and what is done."""
        words = [f"{self.tokens}x{self.hidden}x{self.inter} {self.top_k}/{self.experts}", self.dtype]
        words += [f"{self.weight_dtype}-weights"] if self.is_quantized else []
        words += [f"group={self.group}"] if self.weight_dtype == "int4" and self.group != 64 else []
        words += [self.work] if self.work != "forward" else []
        return " ".join(words)


@dataclass(frozen=True)
class RouteCase:
    """From router logits to the rows of the tokens in the order of their experts, and how many each has."""

    tokens: int
    hidden: int
    experts: int
    top_k: int
    dtype: str = "bf16"
    threads: int = 1

    request: ClassVar[str] = "prepare_route"
    mask_bytes: ClassVar[int] = 0
    flops: ClassVar[int] = 0
    traffic_bytes: ClassVar[int] = 0
    stream_bytes: ClassVar[int] = 0

    def with_(self, **changes: Any) -> RouteCase:
        """The same case with some fields changed."""
        return replace(self, **changes)

    def to_json(self) -> dict[str, Any]:
        """Plain values; RouteCase(**case.to_json()) == case."""
        return asdict(self)

    @property
    def label(self) -> str:
        """What a table row is called."""
        return f"{self.tokens}x{self.hidden} {self.top_k}/{self.experts} {self.dtype} route, permute"
