// Text as a tensor: torch never frees a str that crosses the stable ABI, so UTF-8 goes out as uint8.
#pragma once

#include <torch/csrc/stable/ops.h>

#include <cstdint>
#include <cstring>
#include <string>

#include "torch_tensor.h"

namespace tileformer::torch_binding {

// copied: names of the inputs that are copied, or empty.
inline Tensor explanation(std::string text, const std::string& copied) {
  if (!copied.empty()) text += "\ncopied because their last dimension is not adjacent in memory: " + copied;
  const Tensor bytes =
      torch::stable::empty({static_cast<std::int64_t>(text.size())}, torch::headeronly::ScalarType::Byte);
  std::memcpy(bytes.mutable_data_ptr(), text.data(), text.size());
  return bytes;
}

}  // namespace tileformer::torch_binding
