// The weights of experts as kernels take them: plain data.
#pragma once

#include <cstdint>

#include "tileformer/dtype.h"
#include "tileformer/expert_weights.h"

namespace tileformer::moe {

// A tensor [experts, rows, columns]; strides in elements.
struct ExpertOperand {
  const void* data;  // null: absent
  DType dtype;
  std::int64_t expert, row, column;
};

// The weights of one product of all experts.
struct WeightOperand {
  ExpertOperand weight;
  ExpertOperand scale;  // of codes; columns are groups
  std::int64_t group;   // columns that share a scale
  ExpertOperand bias;   // columns: 1
};

// Strides of dimensions of one element are 0; data null for an absent view.
ExpertOperand operand_of(const TensorView& view);
WeightOperand weights_of(const ExpertWeights& weights);

}  // namespace tileformer::moe
