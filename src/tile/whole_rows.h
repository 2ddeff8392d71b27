// Rows as 16-bit whole numbers relative to their largest element: products with codes are then whole numbers
// too, exact and twice as fast as in fp32. The rounding is 1 / 65534 of the largest element at most: of a row
// of normal numbers 3e-5 in the root mean square, of a row whose largest element is r times as large as its
// root mean square 9e-6 r.
#pragma once

#include "tile/config.h"

namespace tileformer::TILEFORMER_UNIT {

// whole = element * to_whole, element = whole * factor.
struct WholeRow {
  float to_whole, factor;
};

// A row that is not finite has only zeros and the factor NaN.
template <class T>
TF_NOINLINE WholeRow whole_row(const typename T::Element* row, std::int64_t n) {
  F largest = zero(), bad = zero();
  for (std::int64_t d = 0; d < n; d += kVecLanes) {
    const F x = load_up_to<T>(row + d, n - d);
    largest = max(abs(x), largest);
    bad = fma(x, zero(), bad);
  }
  if (!all(equal(bad, bad))) return {0, kNaN};
  const float m = max_of_lanes(largest);
  // Below 3e-33 the numbers become smaller: their quotient must stay finite, and its reciprocal normal.
  const float to_whole = m > 0 ? min_of(kLargestShort / m, 1e37f) : 0;
  return {to_whole, m > 0 ? 1 / to_whole : 0};
}

// 2 * kVecLanes elements from row on, of which n exist, zeros beyond.
template <class T>
TF_INLINE void store_whole(const typename T::Element* row, std::int64_t n, const WholeRow& whole,
                           std::int16_t* out) {
  TF_UNROLL for (int i = 0; i < 2 * kVecLanes; i += kVecLanes) {
    // A factor of zero leaves no NaN and no infinity behind.
    const F x = whole.to_whole > 0 ? mul(load_up_to<T>(row + i, n - i), set(whole.to_whole)) : zero();
    store_shorts(out + i, x);
  }
}

}  // namespace tileformer::TILEFORMER_UNIT
