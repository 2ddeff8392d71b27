// One sequence of a batch as a batch of its own: views of the same memory.
#pragma once

#include <cstdint>
#include <vector>

#include "attention_visible.h"
#include "ops/attention/case_table.h"
#include "tileformer/attention_backward.h"

namespace tileformer::test {

// Entry `first`, `count` long, of a dimension.
inline TensorView slice(TensorView view, int dimension, std::int64_t first, std::int64_t count) {
  if (!view) return view;
  if (count != 0) {
    view.data = static_cast<std::uint8_t*>(view.data) +
                first * view.stride[dimension] * static_cast<std::int64_t>(size_of(view.dtype));
  }
  view.shape[dimension] = count;
  return view;
}

// Rows of a sequence: of queries or of keys.
inline TensorView slice_rows(const AttentionArgs& args, const TensorView& view, std::int64_t n,
                             const Span& span) {
  return slice(slice(view, 0, args.cu_seqlens_query ? 0 : n, 1), 2, span.first, span.count);
}

// What belongs to a sequence of a mask or its gradient: they repeat along a dimension of size 1 and may be
// longer than the sequence.
inline TensorView slice_mask(const AttentionArgs& args, TensorView mask, std::int64_t n) {
  if (!mask) return mask;
  const std::int64_t first[4] = {n, 0, 0, 0},
                     count[4] = {1, mask.shape[1], queries_of(args, n).count, keys_of(args, n).count};
  for (int i : {0, 2, 3}) {
    if (mask.shape[i] != 1) mask = slice(mask, i, first[i], count[i]);
  }
  return mask;
}

inline AttentionArgs alone(const AttentionArgs& args, std::int64_t n) {
  AttentionArgs one = args;
  const Span queries = queries_of(args, n), keys = keys_of(args, n);
  for (TensorView* view : {&one.query, &one.out, &one.lse}) *view = slice_rows(args, *view, n, queries);
  if (!args.block_table) {
    for (TensorView* view : {&one.key, &one.value}) *view = slice_rows(args, *view, n, keys);
  }
  one.block_table = slice(args.block_table, 0, n, 1);
  one.key_lengths = slice(args.key_lengths, 0, n, 1);
  one.attn_mask = slice_mask(args, args.attn_mask, n);
  if (args.alibi_slopes.rank == 2) one.alibi_slopes = slice(args.alibi_slopes, 0, n, 1);
  one.key_range = slice(args.key_range, 0, n, 1);
  one.query_offset = slice(args.query_offset, 0, n, 1);
  one.cu_seqlens_query = one.cu_seqlens_key = TensorView();
  return one;
}

// Without the gradients that sum over the batch.
inline AttentionBackwardArgs alone(const AttentionBackwardArgs& args, std::int64_t n) {
  AttentionBackwardArgs one = args;
  const AttentionArgs& f = args.forward;
  one.forward = alone(f, n);
  const Span queries = queries_of(f, n), keys = keys_of(f, n);
  for (auto [view, span] : {std::pair{&one.grad_out, &queries},
                            {&one.grad_lse, &queries},
                            {&one.grad_query, &queries},
                            {&one.grad_key, &keys},
                            {&one.grad_value, &keys}}) {
    *view = slice_rows(f, *view, n, *span);
  }
  one.grad_mask =
      args.grad_mask && args.grad_mask.shape[0] == 1 ? TensorView() : slice_mask(f, args.grad_mask, n);
  one.grad_sinks = TensorView();
  return one;
}

// Dropout is left out: its bits belong to the place in the batch.
inline std::vector<attention::AttentionCase> cases_with_batches(
    const std::vector<attention::AttentionCase>& cases = attention::attention_cases()) {
  std::vector<attention::AttentionCase> chosen;
  for (const attention::AttentionCase& c : cases) {
    if (c.sequences() > 1 && c.dropout_p == 0) chosen.push_back(c);
  }
  return chosen;
}

}  // namespace tileformer::test
