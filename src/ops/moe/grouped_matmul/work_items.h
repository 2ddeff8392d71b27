// How workers share a phase, and how its tensors are stored. Included by kernels only.
#pragma once

#include "ops/moe/grouped_matmul/kernel_args.h"

namespace tileformer::TILEFORMER_UNIT {

template <class Body>
TF_INLINE void for_items(const moe::grouped::Workers& workers, std::int64_t items, Body body) {
  for (;;) {
    const std::int64_t item = __atomic_fetch_add(workers.next_item, 1, __ATOMIC_RELAXED);
    if (item >= items) break;
    body(item);
  }
}

// Calls use(T{}) with how operands of the product are stored.
template <class Use>
TF_INLINE void for_dtype(DType dtype, Use use) {
  if constexpr (kElementsPerWord == 1) {
    if (dtype == DType::f32) return use(F32{});
    if (dtype == DType::f16) return use(F16{});
  }
  use(BF16{});
}

// The same of results, which any unit may round to any dtype.
template <class Use>
TF_INLINE void for_result_dtype(DType dtype, Use use) {
  if (dtype == DType::f32) return use(F32{});
  if (dtype == DType::f16) return use(F16{});
  use(BF16{});
}

template <class T>
TF_INLINE typename T::Element* row_at(const moe::grouped::Rows& rows, std::int64_t row) {
  return static_cast<typename T::Element*>(rows.data) + row * rows.stride;
}

}  // namespace tileformer::TILEFORMER_UNIT
