// Elements of the small integer arguments: cu_seqlens, key_range, query_offset.
#pragma once

#include <cstdint>

#include "tileformer/tensor_view.h"

namespace tileformer::attention {

// Element [i] or [i, j] of an i32 or i64 view.
inline std::int64_t index_at(const TensorView& view, std::int64_t i, std::int64_t j = 0) {
  const std::int64_t offset = i * view.stride[0] + (view.rank > 1 ? j * view.stride[1] : 0);
  return view.dtype == DType::i64 ? static_cast<const std::int64_t*>(view.data)[offset]
                                  : static_cast<const std::int32_t*>(view.data)[offset];
}

}  // namespace tileformer::attention
