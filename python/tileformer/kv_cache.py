"""A paged KV cache: keys and values of many sequences in pages of one pool, shared where sequences are.

    cache = tileformer.PagedKVCache(num_layers, kv_heads, head_dim, num_pages=1024)
    ids = [cache.add() for _ in prompts]
    step = cache.extend(ids, [len(p) for p in prompts])   # room in all layers, once per step
    for layer in range(num_layers):
        ...                                               # query, key, value: [tokens, heads, dim]
        cache.append(layer, key, value, step)
        out = cache.attend(layer, query, step)            # causal; [tokens, heads, dim_v]

Source: Kwon et al., Efficient Memory Management for LLM Serving with PagedAttention (2023).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch

from tileformer import _C, _paged_ops
from tileformer.kv_step import Rotary, Step
from tileformer.paged_attention import paged_attention, refuse_gradients

if TYPE_CHECKING:
    from tileformer.integrations.model_cache import ModelCache

CacheFull = _C.CacheFull

# What the C++ core calls the types, include/tileformer/dtype.h.
_DTYPES = {
    torch.float32: 0,
    torch.float16: 1,
    torch.bfloat16: 2,
    torch.int8: 7,
    torch.float8_e4m3fn: 8,
    torch.float8_e5m2: 9,
}

DEFAULT_PAGE_SIZE = 64


class LayerPages(NamedTuple):
    """One layer's pools, under the names they have in paged_attention.

    Shapes: [pages, kv_heads, page_size, dim], [.., dim_v] and, of the scales that int8 and float8 pages have,
    float32 [pages, kv_heads, page_size].
    """

    key: torch.Tensor
    value: torch.Tensor
    key_scale: torch.Tensor | None
    value_scale: torch.Tensor | None


def _dtype_code(dtype: torch.dtype, name: str) -> int:
    try:
        return _DTYPES[dtype]
    except (KeyError, TypeError):
        allowed = ", ".join(str(d).removeprefix("torch.") for d in _DTYPES)
        raise ValueError(f"{name} is {dtype}; allowed are {allowed}") from None


class PagedKVCache:
    """Keys and values of up to num_pages * page_size tokens, for each of num_layers layers.

    Args:
        num_layers: layers, which all have pools of the same shape.
        kv_heads: heads of key and value.
        head_dim: dim of a key, 1..576.
        v_head_dim: dim of a value; default head_dim.
        num_pages: pages of every layer's pool.
        page_size: tokens of a page, a multiple of 16 from 16 to 256.
        dtype: what pages hold: float32, float16, bfloat16, or int8, float8_e4m3fn, float8_e5m2, which keep a
            float32 scale for each token and head. Queries may have another dtype.
        value_dtype: the same of the values; default dtype.

    Sequences are known by ids, which are never used again. Calls about different sequences may run at the
    same time in any threads, whatever pages they share; calls about one sequence may not. Memory that was
    never written is not taken from the system. Inference only: nothing here is differentiable.

    Raises:
        ValueError: an argument does not fit; the message names it, what was given and what is allowed.
        CacheFull: the pool has too few free pages; nothing was changed. A RuntimeError.
        RuntimeError: the system does not grant the memory.
    """

    def __init__(
        self,
        num_layers: int,
        kv_heads: int,
        head_dim: int,
        *,
        v_head_dim: int | None = None,
        num_pages: int,
        page_size: int = DEFAULT_PAGE_SIZE,
        dtype: torch.dtype = torch.bfloat16,
        value_dtype: torch.dtype | None = None,
    ) -> None:
        value_dtype = dtype if value_dtype is None else value_dtype
        v_head_dim = head_dim if v_head_dim is None else v_head_dim
        codes = _dtype_code(dtype, "dtype"), _dtype_code(value_dtype, "value_dtype")
        self._core = _C.KvCache(num_layers, kv_heads, head_dim, v_head_dim, page_size, num_pages, *codes)
        self.num_layers, self.kv_heads = num_layers, kv_heads
        self.head_dim, self.v_head_dim = head_dim, v_head_dim
        self.num_pages, self.page_size = num_pages, page_size
        self.dtype, self.value_dtype = dtype, value_dtype
        self._shrinks = 0
        self._layers = [self._pages_of(layer) for layer in range(num_layers)]

    @classmethod
    def for_model(
        cls,
        model: torch.nn.Module,
        *,
        max_tokens: int | None = None,
        num_pages: int | None = None,
        page_size: int = DEFAULT_PAGE_SIZE,
        dtype: torch.dtype | None = None,
        value_dtype: torch.dtype | None = None,
    ) -> ModelCache:
        """The `cache` of a Hugging Face model's generate() or forward(). Its `pool` is a PagedKVCache with
        the layers, heads and dims of the model.

        Size: num_pages, or max_tokens, the tokens of all sequences together; by default what half of the
        available memory holds (only what is written is taken). dtype: default the model's. Raises ValueError
        for a model whose layers one pool cannot serve.
        """
        from tileformer.integrations import paged_cache

        return paged_cache(
            model,
            max_tokens=max_tokens,
            num_pages=num_pages,
            page_size=page_size,
            dtype=dtype,
            value_dtype=value_dtype,
        )

    # Sequences

    def add(self) -> int:
        """A new, empty sequence; returns its id."""
        return self._core.add()

    def fork(self, id: int, length: int | None = None) -> int:
        """A new sequence with the first `length` tokens of sequence `id` (default: all), in the same pages.

        Nothing is copied until one of them grows into a page that both hold.
        """
        return self._core.fork(id, length)

    def extend(self, ids: Sequence[int], tokens: Sequence[int] | int) -> Step:
        """Makes room for tokens[i] more tokens of sequence ids[i], in all layers.

        One number for `tokens` holds for every sequence. Returns what append() and attend() of every layer
        need, see Step. The rows hold nothing until append() has written them.

        Raises CacheFull, before anything was changed, where the pages do not suffice.
        """
        if isinstance(tokens, int):
            tokens = [tokens] * len(ids)
        return Step.of(*self._core.extend(ids, tokens), ids, self._shrinks)

    def trim(self, id: int, length: int) -> None:
        """Forgets the tokens of the sequence from `length` on, such as a draft that was refused."""
        self._shrinks += 1
        self._core.trim(id, length)

    def free(self, id: int) -> None:
        """Forgets the sequence; pages that no other sequence holds are free again."""
        self._shrinks += 1
        self._core.free(id)

    def swap_out(self, id: int, to: str | os.PathLike | bytearray | memoryview | None = None):
        """Moves a sequence out of the pool and frees its pages; the id is no longer valid.

        to: a file (written whole or not at all), or a writable buffer of swap_bytes(id) bytes. Without it a
        bytearray is returned.
        """
        self._shrinks += 1
        if isinstance(to, (str, os.PathLike)):
            return self._core.swap_out_file(id, os.fspath(to))
        if to is None:
            to = bytearray(self.swap_bytes(id))
            self._core.swap_out(id, to)
            return to
        return self._core.swap_out(id, to)

    def swap_in(self, source: str | os.PathLike | bytes | bytearray | memoryview) -> int:
        """Brings back what swap_out() wrote; returns the sequence's new id. The source stays as it is.

        The cache may be another one with the same layers, heads, dims and dtypes. Raises CacheFull where the
        pages do not suffice, ValueError where the source is something else or incomplete.
        """
        if isinstance(source, (str, os.PathLike)):
            return self._core.swap_in_file(os.fspath(source))
        return self._core.swap_in(source)

    def swap_bytes(self, id: int) -> int:
        """How large a buffer swap_out() needs."""
        return self._core.swap_bytes(id)

    # Layers

    def append(
        self,
        layer: int,
        key: torch.Tensor,
        value: torch.Tensor,
        step: Step,
        rotary: Rotary | None = None,
    ) -> None:
        """Writes the step's keys and values into one layer's pages, rotated and quantised on the way.

        key [tokens, kv_heads, dim], value [tokens, kv_heads, dim_v]: the tokens of the step's sequences one
        after the other; or [batch, kv_heads, seq, dim] where every sequence has seq tokens. float32, float16
        or bfloat16, any strides.
        rotary: cos and sin; keys are rotated by step.positions, or the positions that it holds.
        """
        pages = self.layer(layer)
        self._raise_stale(step)
        refuse_gradients("PagedKVCache.append", key=key, value=value)
        if key.dim() == 4:
            key, value = (t.transpose(1, 2).flatten(0, 1) for t in (key, value))
        rotation = () if rotary is None else rotary.arguments(step)
        _paged_ops.append(
            key, value, pages.key, pages.value, step.slots, pages.key_scale, pages.value_scale, *rotation
        )

    def attend(
        self,
        layer: int,
        query: torch.Tensor,
        step: Step,
        *,
        rotary: Rotary | None = None,
        causal: bool | str = True,
        **options,
    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        """Attention of the step's queries over all that its sequences hold in one layer.

        query [tokens, heads, dim]: as in append(); or [batch, heads, seq, dim]. rotary: the query is rotated
        first. options: those of tileformer.paged_attention (scale, window, softcap, sinks, ..., return_lse).
        Returns out, laid out as query.
        """
        pages = self.layer(layer)
        self._raise_stale(step)
        if rotary is not None:
            query = rotary.rotate(query, step)
        return paged_attention(
            query,
            pages.key,
            pages.value,
            step.block_table,
            step.key_lengths,
            cu_seqlens_query=step.cu_seqlens if query.dim() == 3 else None,
            key_scale=pages.key_scale,
            value_scale=pages.value_scale,
            causal=causal,
            **options,
        )

    def gather(self, layer: int, id: int) -> tuple[torch.Tensor, torch.Tensor]:
        """(key, value) of a sequence as dense copies [kv_heads, length, dim], dequantised: for tests, and for
        code that knows no pages. float32 where pages are quantised.
        """
        pages, step = self.layer(layer), self.extend([id], 0)
        length = int(step.key_lengths[0])
        table = step.block_table[0].long()

        def rows(pool: torch.Tensor, scale: torch.Tensor | None) -> torch.Tensor:
            own = pool.view(torch.int8)[table].view(pool.dtype) if pool.element_size() == 1 else pool[table]
            if scale is not None:
                own = own.float() * scale[table][..., None]
            return own.transpose(0, 1).flatten(1, 2)[:, :length]

        return rows(pages.key, pages.key_scale), rows(pages.value, pages.value_scale)

    def layer(self, layer: int) -> LayerPages:
        """One layer's pools, for use with tileformer.paged_attention and other code. Writing into them
        changes the cache.
        """
        if not 0 <= layer < self.num_layers:
            raise ValueError(f"layer is {layer}; allowed are 0 to {self.num_layers - 1}")
        return self._layers[layer]

    # Counts

    def length(self, id: int) -> int:
        """Tokens of the sequence."""
        return self._core.length(id)

    @property
    def used_pages(self) -> int:
        """Pages that sequences hold; one that several share counts once."""
        return self._core.used_pages()

    @property
    def free_pages(self) -> int:
        return self.num_pages - self.used_pages

    @property
    def nbytes(self) -> int:
        """Bytes of all pools, whether written or not."""
        return self._core.nbytes()

    def __reduce_ex__(self, protocol):
        raise TypeError(
            "a PagedKVCache cannot be copied or pickled: fork() shares a sequence, swap_out() writes one"
        )

    def __repr__(self) -> str:
        return (
            f"PagedKVCache({self.num_layers} layers, {self.kv_heads} kv heads, dim {self.head_dim}"
            f"{'' if self.v_head_dim == self.head_dim else f' / {self.v_head_dim}'}, {self.dtype}, "
            f"{self.used_pages} of {self.num_pages} pages of {self.page_size} tokens used, "
            f"{self.nbytes / 2**20:.1f} MiB)"
        )

    def _raise_stale(self, step: Step) -> None:
        """The pages of a step may belong to others once its sequences have let tokens go."""
        if torch.compiler.is_compiling() or step.shrinks == self._shrinks:
            return
        for id, held in zip(step.ids, step.key_lengths.tolist(), strict=True):
            if self._core.length(id) < held:
                raise ValueError(
                    f"step is of {held} tokens of sequence {id}, which holds {self._core.length(id)} now; "
                    "a step ends with the next trim of its sequences"
                )

    def _pages_of(self, layer: int) -> LayerPages:
        # A storage of its own for every pool, so that torch does not take them for overlapping tensors. Each
        # keeps the core, and with it the memory, alive.
        def pool(which: int, dtype: torch.dtype) -> torch.Tensor | None:
            place = self._core.pool(layer, which)
            if place is None:
                return None
            offset, count, shape, strides = place
            if count == 0:
                return torch.empty(shape, dtype=dtype)
            flat = torch.frombuffer(self._core, dtype=dtype, count=count, offset=offset)
            return flat.as_strided(shape, strides)

        return LayerPages(
            pool(0, self.dtype), pool(1, self.value_dtype), pool(2, torch.float32), pool(3, torch.float32)
        )
