// How workers share a phase, and how its tensors are stored. Included by kernels only.
#pragma once

#include <cstdint>

#include "tile/pack.h"

namespace tileformer::TILEFORMER_UNIT {

// Takes items from the shared counter until none is left.
template <class Body>
TF_INLINE void for_items(std::int64_t* next_item, std::int64_t items, Body body) {
  for (;;) {
    const std::int64_t item = __atomic_fetch_add(next_item, 1, __ATOMIC_RELAXED);
    if (item >= items) break;
    body(item);
  }
}

// Calls use(T{}) with how the operands of a product are stored.
template <class Use>
TF_INLINE auto for_dtype(DType dtype, Use use) {
  if constexpr (kElementsPerWord == 1) {
    if (dtype == DType::f32) return use(F32{});
    if (dtype == DType::f16) return use(F16{});
  }
  return use(BF16{});
}

// The same of results, which any unit may round to any dtype.
template <class Use>
TF_INLINE void for_result_dtype(DType dtype, Use use) {
  if (dtype == DType::f32) return use(F32{});
  if (dtype == DType::f16) return use(F16{});
  use(BF16{});
}

}  // namespace tileformer::TILEFORMER_UNIT
