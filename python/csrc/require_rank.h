// Where an output's shape follows from an input's, before the operator can check it.
#pragma once

#include <stdexcept>
#include <string>

#include "tileformer/tensor_view.h"

namespace tileformer::torch_binding {

inline void require_rank(const char* name, const TensorView& view, int rank, const char* layout) {
  if (view.rank == rank) return;
  throw std::invalid_argument(std::string(name) + ": got " + std::to_string(view.rank) +
                              " dimensions, expected " + std::to_string(rank) + " " + layout);
}

}  // namespace tileformer::torch_binding
