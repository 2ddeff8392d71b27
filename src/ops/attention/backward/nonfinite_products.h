// Products of blocks that hold a NaN or an infinity. A query's dS is zero for a key that it does not see, but
// zero times NaN would still reach the gradients; so these blocks are multiplied here, position by position
// where the key is seen. Rare, hence plain. Included by kernels only.
#pragma once

#include "ops/attention/backward/lanes.h"
#include "ops/attention/nonfinite_values.h"

namespace tileformer::TILEFORMER_UNIT {

struct ProductsOfBlock {
  const Word *p, *ds;  // rows [key_block][kLaneWords]
  const std::uint8_t* drop;
  float *dk, *dv, *dq;  // [key][dk_stride], [key][dv_stride], [dim][kLanes]
  std::int64_t dk_stride, dv_stride;
  int first_key, begin, end;  // rows [begin, end) of the block
};

template <class T>
TF_COLD void add_products_where_seen(const BackwardKernelArgs& b, const KernelSequence& s,
                                     std::int64_t kv_head, const GradientLanes& g, const MaskBlock& mask,
                                     const ProductsOfBlock& x) {
  const KernelArgs& a = b.forward;
  for (int i = x.begin; i < x.end; ++i)
    for (int l = 0; l < kLanes; ++l) {
      if (g.query[l] < 0 || !sees(g, mask, a, l, x.first_key + i, i)) continue;
      const std::int64_t head = kv_head * a.group + g.head[l], row = s.first_query + g.query[l];
      const int at = i * kLaneWords + l / kElementsPerWord, element = l % kElementsPerWord;
      const float ds = probability(x.ds + at, element);
      const bool dropped = x.drop && x.drop[i * kLanes + l];
      const float p = dropped ? 0 : probability(x.p + at, element);
      const auto* k = row_of<T>(a.key, s.batch, kv_head, s.first_key + x.first_key + i);
      const auto* q = row_of<T>(a.query, s.batch, head, row);
      const auto* grad = row_of<T>(b.grad_out, s.batch, head, row);
      for (std::int64_t d = 0; d < a.dim_v; ++d)
        x.dv[i * x.dv_stride + d] += p * element_as_float(grad + d, T{});
      for (std::int64_t d = 0; d < a.dim; ++d) {
        x.dk[i * x.dk_stride + d] += ds * element_as_float(q + d, T{});
        x.dq[d * kLanes + l] += ds * element_as_float(k + d, T{});
      }
    }
}

}  // namespace tileformer::TILEFORMER_UNIT
