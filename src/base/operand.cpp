#include "base/operand.h"

#include "tileformer/tensor_view.h"

namespace tileformer {

Operand operand(const TensorView& view) {
  Operand o{};
  if (!view) return o;
  o.data = view.data;
  o.dtype = view.dtype;
  o.element_size = static_cast<int>(size_of(view.dtype));
  std::int64_t* strides[4] = {&o.batch, &o.head, &o.row, &o.column};
  for (int i = 0; i < view.rank; ++i) *strides[i] = view.shape[i] == 1 ? 0 : view.stride[i];
  return o;
}

}  // namespace tileformer
