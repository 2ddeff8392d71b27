// What becomes of a tile's columns: rows of tokens. Included by kernels only.
#pragma once

#include "ops/moe/common/store_some.h"

namespace tileformer::TILEFORMER_UNIT {

// to += factor * x, n elements.
TF_INLINE void add_scaled(float* to, F x, F factor, std::int64_t n) {
  store_some_of<F32>(to, fma(x, factor, load_up_to<F32>(to, n)), n);
}

// C^T [rows][kLanes] + bias[row], lane l times factor[l], is added to the rows of lanes 0 .. lanes - 1 one
// after the other, so that several lanes may share a row.
TF_NOINLINE void add_lanes(const float* c, std::int64_t rows, const float* bias, const float* factor,
                           int lanes, float* const (&row)[kLanes]) {
  for (int lane = 0; lane < lanes; lane += kVecLanes) {
    const F f = load(factor + lane);
    for (std::int64_t d = 0; d < rows; d += kVecLanes) {
      const std::int64_t n = rows - d;
      F block[kVecLanes];
      TF_UNROLL for (int r = 0; r < kVecLanes; ++r) block[r] =
          r < n ? mul(f, add(load(c + (d + r) * kLanes + lane), set(bias[d + r]))) : zero();
      transpose(block);
      TF_UNROLL for (int r = 0; r < kVecLanes; ++r) {
        if (lane + r >= lanes) break;
        float* to = row[lane + r] + d;
        store_some_of<F32>(to, add(load_up_to<F32>(to, n), block[r]), n);
      }
    }
  }
}

// fp32 rows [rows][columns] -> T.
template <class T>
TF_NOINLINE void convert_rows(const float* from, std::int64_t from_stride, std::int64_t rows,
                              std::int64_t columns, typename T::Element* to, std::int64_t to_stride) {
  for (std::int64_t r = 0; r < rows; ++r, from += from_stride, to += to_stride)
    for (std::int64_t d = 0; d < columns; d += kVecLanes)
      store_some_of<T>(to + d, load_up_to<F32>(from + d, columns - d), columns - d);
}

}  // namespace tileformer::TILEFORMER_UNIT
