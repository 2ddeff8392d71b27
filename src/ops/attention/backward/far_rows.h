// Rows whose lse is far below zero (kFarLse): every key they see is hidden by a large negative number in the
// mask, the lowest float in many models. exp(score - lse) would be anything, infinity included, as the
// logarithm of the sum is lost beside such numbers. Their largest score and sum are found again, and kept
// apart. Included by kernels only.
#pragma once

#include "ops/attention/backward/lanes.h"

namespace tileformer::TILEFORMER_UNIT {

// Takes in a tile of scores [kKeyRows][kLanes] in log2 units.
TF_COLD void add_far_scores(const float* scores, GradientLanes& g) {
  for (int lane = 0; lane < kLanes; lane += kVecLanes) {
    const F old_max = load(g.far_max + lane);
    F m = old_max;
    for (int r = 0; r < kKeyRows; ++r) m = max(m, load(scores + r * kLanes + lane));
    const F shift = select(equal(m, set(-kInfinity)), zero(), m);  // -inf: no key yet
    F sum = mul(load(g.sum + lane), exp2(sub(old_max, shift)));
    for (int r = 0; r < kKeyRows; ++r) sum = add(sum, exp2(sub(load(scores + r * kLanes + lane), shift)));
    store(g.far_max + lane, m);
    store(g.sum + lane, sum);
  }
}

// P = 2^(score + neg_max + neg_log_sum) from here on, in these rows alone.
TF_COLD void finish_far_rows(const KernelArgs& a, std::int64_t kv_head, GradientLanes& g) {
  alignas(64) float sink[kLanes], log_sum[kLanes];
  for (int l = 0; l < kLanes; ++l)
    sink[l] = a.sinks ? a.sinks[kv_head * a.group + g.head[l]] * kLog2E : -kInfinity;
  for (int lane = 0; lane < kLanes; lane += kVecLanes) {
    const F of_sink = exp2(min(set(100.0f), sub(load(sink + lane), load(g.far_max + lane))));
    store(log_sum + lane, log2(add(load(g.sum + lane), of_sink)));
  }
  for (int l = 0; l < kLanes; ++l) {
    if (!g.is_far[l]) continue;
    const bool sees_nothing = g.far_max[l] == -kInfinity;  // behind its mask; lse may be anything
    g.neg_max[l] = sees_nothing ? -kInfinity : -g.far_max[l];
    if (sees_nothing) g.neg_lse[l] = -kInfinity;
    g.neg_log_sum[l] = sees_nothing ? 0 : -log_sum[l];
    if (is_finite(g.sum[l])) continue;
    g.neg_log_sum[l] = g.sum[l];  // NaN, of which the logarithm makes a number
    g.finite = false;
  }
}

}  // namespace tileformer::TILEFORMER_UNIT
