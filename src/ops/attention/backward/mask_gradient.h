// grad_mask: the gradients of a block's scores, added where their mask elements lie. Included by kernels
// only.
#pragma once

#include "ops/attention/backward/lanes.h"
#include "ops/attention/nonfinite_values.h"

namespace tileformer::TILEFORMER_UNIT {

// ds [key_block][kLanes], rows [begin, end) of the block whose first key is first_key.
TF_NOINLINE void add_mask_gradient(const BackwardKernelArgs& a, std::int64_t sequence, std::int64_t kv_head,
                                   const GradientLanes& g, const MaskBlock& mask, const float* ds,
                                   int first_key, int begin, int end) {
  const Operand& m = a.grad_mask;
  for (int l = 0; l < kLanes; ++l) {
    if (g.query[l] < 0) continue;
    float* to = static_cast<float*>(m.data) + sequence * m.batch +
                (kv_head * a.forward.group + g.head[l]) * m.head + g.query[l] * m.row;
    for (int i = begin; i < end; ++i)
      if (sees(g, mask, a.forward, l, first_key + i, i)) to[(first_key + i) * m.column] += ds[i * kLanes + l];
  }
}

}  // namespace tileformer::TILEFORMER_UNIT
