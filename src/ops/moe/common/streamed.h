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

// A run of more pairs is multiplied in tiles: on Zen 3 streaming wins up to 14 pairs beside tiles of 16 (at
// 16, plain weights lose a tenth, codes still win), on Zen 4 up to 12 beside tiles of 32, whose halves
// have 16.
inline constexpr int kMaxRowPairs = kLanes >= 32 ? 12 : kLanes - 2;

// Rows [first_row, first_row + rows) of an expert's weights, `elements` long, times packed rows.
struct StreamedProduct {
  const moe::WeightOperand* w;
  std::int64_t expert, first_row;
  int rows;
  std::int64_t elements;
  int pairs;
  const Word* packed;
  float* y;  // [pairs][y_stride], written in whole steps of kRowStep
  std::int64_t y_stride;
};

// Floats of y that so many rows of weights take.
TF_INLINE std::int64_t streamed_rows(std::int64_t rows) { return round_up(rows, kRowStep); }

// Calls use.operator()<N>() with the count, at most N, as a constant.
template <int N, class Use>
TF_INLINE void with_count(int count, Use use) {
  if constexpr (N > 1)
    if (count < N) return with_count<N - 1>(count, use);
  use.template operator()<N>();
}

// Calls use.operator()<N>(first) for shares of N pairs, at most kMost of them, of nearly the same size: they
// are multiplied together; more take turns while a few rows of weights are in L1 or L2.
template <int kMost, class Use>
TF_INLINE void for_shares(int pairs, Use use) {
  const int shares = static_cast<int>(ceil_div(pairs, kMost));
  for (int s = 0, first = 0; s < shares; ++s) {
    const int count = pairs / shares + (s < pairs % shares);
    with_count<kMost>(
        count, [&]<int N>() __attribute__((always_inline)) { use.template operator()<N>(first); });
    first += count;
  }
}

}  // namespace tileformer::TILEFORMER_UNIT
