// Arguments for plans.
#pragma once

#include <cstdint>

#include "tileformer/attention.h"

namespace tileformer::test {

// Planning reads shapes only; the memory behind them is one element.
inline AttentionArgs shapes_only(std::int64_t heads, std::int64_t kv_heads, std::int64_t seq_q,
                                 std::int64_t seq_k, std::int64_t dim, DType dtype) {
  static std::uint64_t element;
  AttentionArgs args;
  args.query = TensorView::dense(&element, dtype, {1, heads, seq_q, dim});
  args.key = TensorView::dense(&element, dtype, {1, kv_heads, seq_k, dim});
  args.value = TensorView::dense(&element, dtype, {1, kv_heads, seq_k, dim});
  args.out = TensorView::dense(&element, dtype, {1, heads, seq_q, dim});
  args.causal = Causal::bottom_right;
  return args;
}

}  // namespace tileformer::test
