"""The mask descriptor: what it says is what transformers' dense mask says."""

from __future__ import annotations

import itertools

import pytest
import torch
from exact_attention import visible
from transformers import masking_utils as hf

from tileformer.integrations.transformers import prepare_mask


def meaning(mask: torch.Tensor | None, batch: int, seq_q: int, seq_k: int, causal: bool) -> torch.Tensor:
    """bool [batch, seq_q, seq_k]: what a mask of prepare_mask lets through."""
    if mask is None:
        return visible(seq_q, seq_k, causal=causal).expand(batch, -1, -1)
    if mask.dtype == torch.bool:
        return mask[:, 0]
    if mask.shape[-1] == 1:
        window = (mask.shape[1] - 1 if mask.shape[1] > 1 else -1, -1)
        starts = mask[0, 0, :, 0]
        sequence = torch.bucketize(torch.arange(batch * seq_q), starts, right=True).view(batch, seq_q)
        return visible(seq_q, seq_k, causal=True, window=window) & (sequence[:, :, None] == sequence[:, None])
    rows = []
    for numbers in mask[:, 0, 0].tolist():
        window = mask.shape[2] - 1 if mask.shape[2] > 1 else -1
        seen = (
            visible(seq_q, seq_k, causal=True, window=(window, -1), diagonal=numbers[2])
            if len(numbers) == 3
            else visible(seq_q, seq_k, window=(window, window))
        )
        keys = torch.arange(seq_k)
        rows.append(seen & (keys >= numbers[0]) & (keys < numbers[1]))
    return torch.stack(rows)


PADDING = {
    "none": None,
    "all_ones": torch.ones(2, 12, dtype=torch.bool),
    "left": torch.arange(12)[None] >= torch.tensor([[0], [5]]),
    "right": torch.arange(12)[None] < torch.tensor([[12], [7]]),
    "empty_row": torch.arange(12)[None] < torch.tensor([[12], [0]]),
    "shorter_than_keys": torch.ones(2, 9, dtype=torch.bool),
    "holes": torch.tensor([[True] * 12, [True, False] * 6]),
}
FUNCTIONS = {
    "causal": hf.causal_mask_function,
    "sliding_4": hf.sliding_window_causal_mask_function(4),
    "sliding_1": hf.sliding_window_causal_mask_function(1),
    "sliding_wider_than_keys": hf.sliding_window_causal_mask_function(50),
    "bidirectional": hf.bidirectional_mask_function,
    "bidirectional_sliding": hf.sliding_window_bidirectional_mask_function(3),
    "chunked": hf.chunked_causal_mask_function(4, torch.zeros(2, dtype=torch.long)),
}


@pytest.mark.parametrize("padding", PADDING)
@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("q_length, q_offset", [(12, 0), (5, 7), (1, 11), (1, 6), (3, 2)])
def test_same_as_the_dense_mask(padding, function, q_length, q_offset):
    arguments = dict(mask_function=FUNCTIONS[function], attention_mask=PADDING[padding])
    causal = not function.startswith("bidirectional")
    expected = hf.sdpa_mask(2, q_length, 12, q_offset, allow_is_causal_skip=False, **arguments)[:, 0]
    for offset, skip in itertools.product((q_offset, torch.tensor(q_offset)), (True, False)):
        arguments.update(allow_is_causal_skip=skip, allow_is_bidirectional_skip=skip and not causal)
        mask = prepare_mask(2, q_length, 12, offset, **arguments)
        assert torch.equal(meaning(mask, 2, q_length, 12, causal), expected)
        exact = padding == "holes" or function in ("chunked", "sliding_1")
        # A window both ways is said in numbers where the queries are the keys.
        exact = exact or (function == "bidirectional_sliding" and not (q_length == 12 and offset is q_offset))
        assert exact or mask is None or mask.dtype == torch.int32


@pytest.mark.parametrize("kv_offset", [0, 3, 8])
def test_keys_that_start_later(kv_offset):
    """A sliding cache has dropped the first kv_offset keys."""
    padding = torch.arange(20)[None] >= torch.tensor([[0], [10]])
    arguments = dict(
        q_offset=16, kv_offset=kv_offset, mask_function=FUNCTIONS["sliding_4"], attention_mask=padding
    )
    length = 20 - kv_offset
    expected = hf.sdpa_mask(2, 4, length, allow_is_causal_skip=False, **arguments)[:, 0]
    mask = prepare_mask(2, 4, length, **arguments)
    assert mask.dtype == torch.int32 and torch.equal(meaning(mask, 2, 4, length, True), expected)


def test_a_descriptor_holds_three_numbers_per_sequence():
    mask = prepare_mask(2, 4096, 4096, mask_function=hf.sliding_window_causal_mask_function(1000))
    assert mask.shape == (2, 1, 1000, 3) and mask.stride(2) == 0
    assert mask.untyped_storage().nbytes() == 2 * 3 * 4


def test_plain_causal_needs_no_mask_at_all():
    assert prepare_mask(2, 9, 9) is None
    assert prepare_mask(2, 9, 9, attention_mask=torch.ones(2, 9, dtype=torch.bool)) is None
    assert prepare_mask(2, 1, 9, q_offset=8) is None


POSITIONS = {
    "two_rows": [[0, 1, 2, 3, 0, 1, 2, 3, 4], [0, 1, 0, 0, 1, 2, 3, 4, 5]],
    "one_row_alone": [[0, 1, 2, 3, 4, 5, 6, 7, 8], [0, 0, 0, 1, 2, 3, 4, 5, 6]],
    "not_from_zero": [[5, 6, 7, 8, 2, 3, 4, 5, 6], [7, 8, 9, 3, 4, 5, 6, 7, 8]],
    "nothing_but_firsts": [[0] * 9, [3] * 9],
    "one_row": [[0, 1, 2, 0, 1, 2, 3, 4, 5]],
}


@pytest.mark.parametrize("window", [None, 1, 3, 50])
@pytest.mark.parametrize("positions", POSITIONS)
def test_packed_sequences_are_said_by_where_they_begin(positions, window):
    position_ids = torch.tensor(POSITIONS[positions])
    batch, length = position_ids.shape
    within = hf.causal_mask_function if window is None else hf.sliding_window_causal_mask_function(window)
    packed = hf.and_masks(
        hf.remap_positions_for_packed_sequence(within, position_ids),
        hf.packed_sequence_mask_function(hf.find_packed_sequence_indices(position_ids)),
    )
    arguments = dict(mask_function=packed, allow_is_causal_skip=False)
    expected = hf.sdpa_mask(batch, length, length, **arguments)[:, 0]
    mask = prepare_mask(batch, length, length, **arguments)
    assert mask.dtype == (torch.bool if window == 1 else torch.int32)
    assert torch.equal(meaning(mask, batch, length, length, True), expected)
