// A row of a tensor by its index. Included by kernels only.
#pragma once

#include "ops/moe/grouped_matmul/kernel_args.h"
#include "tile/pack.h"

namespace tileformer::TILEFORMER_UNIT {

template <class T>
TF_INLINE typename T::Element* row_at(const moe::grouped::Rows& rows, std::int64_t row) {
  return static_cast<typename T::Element*>(rows.data) + row * rows.stride;
}

}  // namespace tileformer::TILEFORMER_UNIT
