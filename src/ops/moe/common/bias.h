// Biases of experts in fp32. Included by kernels only.
#pragma once

#include "ops/moe/common/weight_operand.h"
#include "tile/pack.h"

namespace tileformer::TILEFORMER_UNIT {

// Biases of rows [first, first + rows) of an expert, zeros without any and beyond.
TF_NOINLINE void load_bias(const moe::WeightOperand& w, std::int64_t expert, std::int64_t first, int rows,
                           float* to) {
  __builtin_memset(to, 0, sizeof(float) * round_up(rows, kVecLanes));
  const moe::ExpertOperand& b = w.bias;
  if (!b.data) return;
  const std::int64_t at = expert * b.expert + first;
  for (int i = 0; i < rows; i += kVecLanes) {
    const int n = rows - i;
    if (b.dtype == DType::f32)
      store(to + i, load_up_to<F32>(static_cast<const float*>(b.data) + at + i, n));
    else if (b.dtype == DType::f16)
      store(to + i, load_up_to<F16>(static_cast<const std::uint16_t*>(b.data) + at + i, n));
    else
      store(to + i, load_up_to<BF16>(static_cast<const std::uint16_t*>(b.data) + at + i, n));
  }
}

}  // namespace tileformer::TILEFORMER_UNIT
