// Vectors that may end beyond a row. Included by kernels only.
#pragma once

#include "tile/pack.h"

namespace tileformer::TILEFORMER_UNIT {

// The first n elements of a vector, n >= 1.
template <class T>
TF_INLINE void store_some_of(typename T::Element* to, F x, std::int64_t n) {
  if (TF_LIKELY(n >= kVecLanes))
    store_elements(to, x, T{});
  else
    store_some<T>(to, x, static_cast<int>(n));
}

}  // namespace tileformer::TILEFORMER_UNIT
