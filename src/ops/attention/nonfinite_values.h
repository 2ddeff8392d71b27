// NaN and infinities in V. In O^T += V^T P^T a key that a query does not see has probability zero, and zero
// times NaN would still reach that query. So a block whose V is not finite is multiplied with zeros in those
// places, and what they contribute is added here, query by query, where the key is seen. Rare, hence plain.
// Included by kernels only.
#pragma once

#include "ops/attention/mask_block.h"

namespace tileformer::TILEFORMER_UNIT {

TF_INLINE bool sees(const LaneGroup& g, const MaskBlock& mask, const KernelArgs& a, int lane, int key,
                    int row) {
  if (key < g.begin[lane] || key >= g.end[lane]) return false;
  if (!a.mask.data) return true;
  const int at = row * kLanes + lane;
  return a.mask.dtype == DType::boolean ? mask.allowed[at] != 0 : mask.bias[at] != -kInfinity;
}

// Rows [begin, end) of a block whose first key is first_key.
struct BlockRows {
  int first_key, begin, end;
};

// v: the rows of the block (rows.h); P and O of the group.
template <class T, class Rows>
TF_INLINE void add_nonfinite_values(const KernelArgs& a, const Rows& v, const LaneGroup& g,
                                    const MaskBlock& mask, const BlockRows& rows, const Word* p, float* o) {
  for (int i = rows.begin; i < rows.end; ++i) {
    const RowRun<T> run = v.run(i / kRunRows * kRunRows);
    const typename T::Element* row = run.row(i % kRunRows);
    for (std::int64_t d = 0; d < a.dim_v; ++d) {
      const float x = element_as_float(row + d, T{}) * run.scale(i % kRunRows);
      if (x - x == 0) continue;
      for (int l = 0; l < kLanes; ++l) {
        if (g.query[l] < 0 || !sees(g, mask, a, l, rows.first_key + i, i)) continue;
        const Word* word = p + i / kElementsPerWord * kLanes + l;
        o[d * kLanes + l] += probability(word, i % kElementsPerWord) * x;
      }
    }
  }
}

}  // namespace tileformer::TILEFORMER_UNIT
