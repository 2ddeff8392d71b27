// A tensor as kernels take it: plain data.
#pragma once

#include <cstdint>

#include "tileformer/dtype.h"

namespace tileformer {

struct TensorView;

// A tensor [batch, heads, rows, columns]; strides in elements, 0 where it broadcasts.
struct Operand {
  void* data;
  DType dtype;
  int element_size;  // bytes
  std::int64_t batch, head, row, column;
};

// 0 strides where a dimension has one entry; data null for an absent view.
Operand operand(const TensorView& view);

}  // namespace tileformer
