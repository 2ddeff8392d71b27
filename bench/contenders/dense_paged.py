"""The cache of who has no pages: keys and values of every sequence gathered beforehand, for the arguments of
F.scaled_dot_product_attention; and rows written with index_copy_.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from bench.contenders import Unsupported
from bench.inputs import DTYPES
from bench.paged_case import AppendCase, PagedCase
from bench.paged_inputs import PagedCall, PagedInputs, checked_tokens, huge_tensor


def sdpa_call(
    case: PagedCase,
    inputs: PagedInputs,
    sdpa: Callable[..., torch.Tensor],
    *,
    dense_mask: Callable[[torch.Tensor, torch.dtype], torch.Tensor] = lambda mask, dtype: mask,
    **options: Any,
) -> PagedCall:
    """One call of sdpa where all sequences are alike, else one for each. Raises Unsupported.

    dense_mask: makes of a boolean mask what sdpa takes. options: further arguments of sdpa.
    """
    if case.cache_dtype != case.dtype:
        raise Unsupported(f"no cache of {case.cache_dtype} without pages")
    if case.is_even:
        query, key, value = (
            inputs.dense_query().contiguous(),
            inputs.dense(inputs.key),
            inputs.dense(inputs.value),
        )
        problems = [(query, key, value, _causality(case.queries[0], case.lengths[0]))]
    else:
        problems = [
            (
                q.transpose(0, 1).unsqueeze(0).contiguous(),
                k.transpose(0, 1).unsqueeze(0).contiguous(),
                v.transpose(0, 1).unsqueeze(0).contiguous(),
                _causality(q.shape[0], k.shape[0]),
            )
            for q, k, v in zip(
                inputs.query.split(case.queries),
                inputs.key.split(case.lengths),
                inputs.value.split(case.lengths),
            )
        ]

    for *_, causality in problems:
        if "attn_mask" in causality:
            causality["attn_mask"] = dense_mask(causality["attn_mask"], inputs.query.dtype)

    def run() -> list[torch.Tensor]:
        return [sdpa(q, k, v, **causality, **options) for q, k, v, causality in problems]

    def output() -> torch.Tensor:
        return torch.cat([out.transpose(1, 2).flatten(0, 1) for out in run()])

    return PagedCall(run, output, sum(k.nbytes + v.nbytes for _, k, v, _ in problems))


def _causality(queries: int, keys: int) -> dict[str, Any]:
    """The last queries of the keys: torch's is_causal means the first ones, so that a mask has to say it."""
    if queries == 1:
        return {}
    if queries == keys:
        return {"is_causal": True}
    seen = torch.ones(queries, keys, dtype=torch.bool).tril(keys - queries)
    return {"attn_mask": seen[None, None]}


def index_copy_call(case: AppendCase, inputs: PagedInputs) -> PagedCall:
    """Rows of [pages * page, kv_heads, dim], as a cache in torch is written. Raises Unsupported."""
    if case.cache_dtype != case.dtype:
        raise Unsupported(f"torch does not quantise to {case.cache_dtype} with a scale for each row")
    slots = inputs.slots(case.page)
    shape = (int(inputs.table(case.page).max()) + 1) * case.page, case.kv_heads, case.dim
    keys, values = (huge_tensor(shape, DTYPES[case.dtype]).zero_() for _ in range(2))

    def run() -> None:
        keys.index_copy_(0, slots, inputs.key)
        values.index_copy_(0, slots, inputs.value)

    def read_back() -> torch.Tensor:
        run()
        rows = slots[checked_tokens(case)]
        return torch.stack([keys[rows], values[rows]]).float()

    return PagedCall(run, read_back, 2 * keys.nbytes)
