#include "base/describe.h"

namespace tileformer {

std::string describe_shape(const TensorView& tensor) {
  std::string text = "[";
  for (int i = 0; i < tensor.rank; ++i) text += (i ? ", " : "") + std::to_string(tensor.shape[i]);
  return text + "]";
}

std::string describe(const TensorView& tensor) {
  if (!tensor) return "none";
  return std::string(name_of(tensor.dtype)) + " " + describe_shape(tensor);
}

}  // namespace tileformer
