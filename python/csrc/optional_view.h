// Views of optional tensors.
#pragma once

#include <optional>

#include "torch_tensor.h"

namespace tileformer::torch_binding {

// Autograd and tracing may hand over an optional that holds an undefined tensor.
inline bool given(const std::optional<Tensor>& tensor) { return tensor.has_value() && tensor->defined(); }

inline TensorView optional_view(const std::optional<Tensor>& tensor, const char* name) {
  return given(tensor) ? view_of(*tensor, name) : TensorView{};
}

}  // namespace tileformer::torch_binding
