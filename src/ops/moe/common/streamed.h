// Few rows of tokens times the weights of an expert, which are read once and in the order of their addresses,
// in place: bound by memory, so that nothing is copied or padded. How that is done, the form, follows from
// how weights are stored (row_run.h, code_run.h, column_run.h). Every form has
//
//   words(elements, pairs)                       of the packed rows of a run
//   pack<TX>(row, elements, pair, pairs, out)    one row of them, stored as TX
//   sums(product)                                y = W x
//
// Included by kernels only.
#pragma once

#include "ops/moe/common/weight_operand.h"
#include "tile/pack.h"

namespace tileformer::TILEFORMER_UNIT {

// A run of more pairs is multiplied in tiles.
inline constexpr int kMaxRowPairs = 12;
// Pairs that are multiplied together; more take turns while a few rows of weights are in L1 or L2.
inline constexpr int kPairsAtOnce = 6;

// Rows [first_row, first_row + rows) of an expert's weights, `elements` long, times packed rows.
struct StreamedProduct {
  const moe::WeightOperand* w;
  std::int64_t expert, first_row;
  int rows;
  std::int64_t elements;
  int pairs;
  const Word* packed;
  float* y;  // [pairs][y_stride], written in whole steps
  std::int64_t y_stride;
};

// Floats of y that so many rows of weights take.
TF_INLINE std::int64_t streamed_rows(std::int64_t rows) { return round_up(rows, kRowStep); }

// Calls use(first, count) for shares of the pairs of nearly the same size.
template <class Use>
TF_INLINE void for_pairs_at_once(int pairs, Use use) {
  const int shares = static_cast<int>(ceil_div(pairs, kPairsAtOnce));
  for (int s = 0, first = 0; s < shares; ++s) {
    const int count = pairs / shares + (s < pairs % shares);
    use(first, count);
    first += count;
  }
}

// Calls use.operator()<N>() with the count as a constant.
template <int N = kPairsAtOnce, class Use>
TF_INLINE void with_count(int count, Use use) {
  if constexpr (N > 1)
    if (count < N) return with_count<N - 1>(count, use);
  use.template operator()<N>();
}

}  // namespace tileformer::TILEFORMER_UNIT
