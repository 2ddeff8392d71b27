// Tensors as text, for messages.
#pragma once

#include <string>

#include "tileformer/tensor_view.h"

namespace tileformer {

// "[1, 8, 16, 64]"
std::string describe_shape(const TensorView& tensor);

// "float32 [1, 8, 16, 64]", or "none" for an absent tensor.
std::string describe(const TensorView& tensor);

}  // namespace tileformer
