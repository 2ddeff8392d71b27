// The queries of one tile in the backward. Included by kernels only.
#pragma once

#include "ops/attention/backward/kernel_args.h"
#include "ops/attention/lane_group.h"

namespace tileformer::TILEFORMER_UNIT {

using attention::BackwardKernelArgs;
using attention::BackwardTask;

struct alignas(64) GradientLanes : LaneGroup {  // neg_max is -lse in log2 units
  float neg_lse[kLanes];                        // in natural units
  float neg_row_term[kLanes];                   // -D
  float neg_log_sum[kLanes], far_max[kLanes];   // far_rows.h; neg_log_sum is 0 in all other rows
  bool is_far[kLanes], any_far;
  bool finite;  // all of Q, dO, lse and D
};

TF_INLINE bool is_finite(float x) { return x - x == 0; }

template <class T>
TF_INLINE const typename T::Element* row_of(const Operand& x, std::int64_t batch, std::int64_t head,
                                            std::int64_t row) {
  return static_cast<const typename T::Element*>(x.data) + batch * x.batch + head * x.head + row * x.row;
}
TF_INLINE float* float_of(const Operand& x, std::int64_t batch, std::int64_t head, std::int64_t row) {
  return static_cast<float*>(x.data) + batch * x.batch + head * x.head + row * x.row;
}

// Sum over the lanes of a vector, always in the same order.
TF_INLINE float lane_sum(F x) {
  alignas(64) float lane[kVecLanes];
  store(lane, x);
  float sum = 0;
  for (int l = 0; l < kVecLanes; ++l) sum += lane[l];
  return sum;
}

// a . b; *nonfinite becomes NaN where one of the elements is a NaN or an infinity.
template <class T>
TF_INLINE float dot_rows(const typename T::Element* a, const typename T::Element* b, std::int64_t n,
                         F* nonfinite) {
  F sum = zero(), bad = *nonfinite;
  for (std::int64_t d = 0; d < n; d += kVecLanes) {
    const F x = load_up_to<T>(a + d, n - d), y = load_up_to<T>(b + d, n - d);
    sum = fma(x, y, sum);
    bad = fma(x, zero(), fma(y, zero(), bad));
  }
  *nonfinite = bad;
  return lane_sum(sum);
}

// Whether `rows` rows of n elements hold neither NaN nor infinity.
template <class T>
TF_NOINLINE bool all_finite(const typename T::Element* x, std::int64_t stride, int rows, std::int64_t n) {
  F bad = zero();
  for (int i = 0; i < rows; ++i)
    for (std::int64_t d = 0; d < n; d += kVecLanes)
      bad = fma(load_up_to<T>(x + i * stride + d, n - d), zero(), bad);
  return all(equal(bad, bad));
}

// Reads lse, D and whether all is finite, for every lane.
template <class T>
TF_NOINLINE void init_gradient_lanes(const BackwardKernelArgs& a, const KernelSequence& s,
                                     std::int64_t kv_head, std::int64_t index, bool scores_are_modified,
                                     GradientLanes& g) {
  init_group(a.forward, s, kv_head, index, g);
  g.any_far = false;
  F bad = zero();
  bool finite = true;
  for (int l = 0; l < kLanes; ++l) {
    g.neg_max[l] = g.neg_lse[l] = -kInfinity;  // an empty lane has no probabilities
    g.neg_row_term[l] = g.neg_log_sum[l] = 0;
    g.far_max[l] = -kInfinity;
    g.is_far[l] = false;
    if (g.query[l] < 0) {
      g.begin[l] = g.end[l] = 0;  // and sees nothing, not even what the mask block holds behind the last key
      continue;
    }
    const std::int64_t head = kv_head * a.forward.group + g.head[l], row = s.first_query + g.query[l];
    float term = dot_rows<T>(row_of<T>(a.out, s.batch, head, row), row_of<T>(a.grad_out, s.batch, head, row),
                             a.forward.dim_v, &bad);
    if (a.grad_lse.data) term -= *float_of(a.grad_lse, s.batch, head, row);
    g.neg_row_term[l] = -term;
    if (a.row_term.data) *float_of(a.row_term, s.batch, head, row) = term;
    const float lse = *float_of(a.forward.lse, s.batch, head, row);
    // A row that sees nothing: whatever its lse is, all its probabilities are zero.
    const bool sees_nothing = lse == -kInfinity || g.begin[l] >= g.end[l];
    g.neg_lse[l] = sees_nothing ? -kInfinity : -lse;
    g.neg_max[l] = g.neg_lse[l] * kLog2E;
    g.is_far[l] = scores_are_modified && !sees_nothing && lse < attention::kFarLse;
    g.any_far = g.any_far || g.is_far[l];
    finite = finite && is_finite(term) && (sees_nothing || is_finite(g.neg_max[l]));
    finite = finite && all_finite<T>(row_of<T>(a.forward.query, s.batch, head, row), 0, 1, a.forward.dim);
  }
  g.finite = finite && all(equal(bad, bad));
}

}  // namespace tileformer::TILEFORMER_UNIT
