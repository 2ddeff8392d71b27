// NaN and infinities in the backward. P and dS are zero where a query does not see a key, but zero times NaN
// would still reach the sums over keys and queries. So where there are such values, the packed operands of
// those sums hold zeros in their place, P and dS are made zero where nothing is seen, and what the values
// contribute is added here, position by position, where the key is seen. All else keeps its bits. Rare, hence
// plain. Included by kernels only.
#pragma once

#include "ops/attention/backward/lanes.h"
#include "ops/attention/nonfinite_values.h"

namespace tileformer::TILEFORMER_UNIT {

// P, dS and the sums of a group and a block of keys.
struct ProductsOfBlock {
  Word *p, *ds;         // rows [key_block][kLaneWords]
  Word* ds_packed;      // [key_block / W][kLanes]; where W is 1, ds serves
  float *dk, *dv, *dq;  // [key][dk_stride], [key][dv_stride], [dim][kLanes]
  std::int64_t dk_stride, dv_stride;
  int first_key, begin, end;  // rows [begin, end) of the block, multiples of kKeyRows
};

TF_COLD void clear_unseen(const KernelArgs& a, const GradientLanes& g, const MaskBlock& mask,
                          const ProductsOfBlock& x) {
  std::uint8_t unseen[kElementsPerWord][kLanes];
  for (int i = x.begin; i < x.end; i += kElementsPerWord) {
    for (int e = 0; e < kElementsPerWord; ++e) {
      for (int l = 0; l < kLanes; ++l)
        unseen[e][l] = g.query[l] < 0 || !sees(g, mask, a, l, x.first_key + i + e, i + e);
      for (int w = 0; w < kLaneWords; ++w) {
        const std::uint8_t* of_word = unseen[e] + w * kElementsPerWord;
        const int at = (i + e) * kLaneWords + w;
        x.p[at] = kept_elements(x.p[at], of_word);
        x.ds[at] = kept_elements(x.ds[at], of_word);
      }
    }
    if constexpr (kElementsPerWord > 1)
      for (int l = 0; l < kLanes; ++l) {
        std::uint8_t of_lane[kElementsPerWord];
        for (int e = 0; e < kElementsPerWord; ++e) of_lane[e] = unseen[e][l];
        Word* word = x.ds_packed + i / kElementsPerWord * kLanes + l;
        *word = kept_elements(*word, of_lane);
      }
  }
}

// sums[d * stride] += weight * x[d] where x[d] is a NaN or an infinity.
template <class T>
TF_INLINE void add_nonfinite(float* sums, std::int64_t stride, float weight, const typename T::Element* x,
                             std::int64_t n) {
  for (std::int64_t d = 0; d < n; ++d) {
    const float value = element_as_float(x + d, T{});
    if (!is_finite(value)) sums[d * stride] += weight * value;
  }
}

template <class T>
TF_COLD void add_nonfinite_products(const BackwardKernelArgs& b, const KernelSequence& s,
                                    std::int64_t kv_head, const GradientLanes& g, const MaskBlock& mask,
                                    const ProductsOfBlock& x) {
  using E = typename T::Element;
  const KernelArgs& a = b.forward;
  const E *query[kLanes], *grad[kLanes];  // null: finite
  for (int l = 0; l < kLanes; ++l) {
    query[l] = grad[l] = nullptr;
    if (g.query[l] < 0) continue;
    const std::int64_t head = kv_head * a.group + g.head[l], row = s.first_query + g.query[l];
    const E *q = row_of<T>(a.query, s.batch, head, row), *d = row_of<T>(b.grad_out, s.batch, head, row);
    if (!all_finite<T>(q, 0, 1, a.dim)) query[l] = q;
    if (!all_finite<T>(d, 0, 1, a.dim_v)) grad[l] = d;
  }
  for (int i = x.begin; i < x.end; ++i) {
    const std::int64_t row = s.first_key + x.first_key + i;
    const E* key = x.first_key + i < s.keys ? row_of<T>(a.key, s.batch, kv_head, row) : nullptr;
    if (key && all_finite<T>(key, 0, 1, a.dim)) key = nullptr;
    for (int l = 0; l < kLanes; ++l) {
      if (!(key || query[l] || grad[l])) continue;
      if (g.query[l] < 0 || !sees(g, mask, a, l, x.first_key + i, i)) continue;
      const int at = i * kLaneWords + l / kElementsPerWord, element = l % kElementsPerWord;
      const float p = probability(x.p + at, element), ds = probability(x.ds + at, element);
      if (key && b.grad_query.data) add_nonfinite<T>(x.dq + l, kLanes, ds, key, a.dim);
      if (query[l]) add_nonfinite<T>(x.dk + i * x.dk_stride, 1, ds, query[l], a.dim);
      if (grad[l]) add_nonfinite<T>(x.dv + i * x.dv_stride, 1, p, grad[l], a.dim_v);
    }
  }
}

}  // namespace tileformer::TILEFORMER_UNIT
