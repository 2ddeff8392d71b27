#include "ops/moe/common/weight_operand.h"

namespace tileformer::moe {

ExpertOperand operand_of(const TensorView& v) {
  if (!v) return {};
  const auto stride = [&](int i) { return v.shape[i] == 1 ? 0 : v.stride[i]; };
  if (v.rank == 2) return {v.data, v.dtype, stride(0), 1, 1};
  // A dimension of one element is as good as one with unit stride.
  const bool columns = v.stride[2] == 1 || v.shape[2] == 1;
  return {v.data, v.dtype, stride(0), columns ? stride(1) : 1, columns ? 1 : v.stride[2]};
}

WeightOperand weights_of(const ExpertWeights& w) {
  WeightOperand o{};
  o.weight = operand_of(w.weight);
  o.scale = operand_of(w.scale);
  o.bias = operand_of(w.bias);
  if (w.scale && w.scale.rank == 3 && w.scale.shape[2] > 0)
    o.group = w.weight.shape[2] * (w.weight.dtype == DType::i4x2 ? 2 : 1) / w.scale.shape[2];
  return o;
}

}  // namespace tileformer::moe
