// Online softmax on score tiles [key][lane]: what a product's companion does for the tile before, and the
// rare rescale. Included by kernels only.
#pragma once

#include "ops/attention/scores.h"

namespace tileformer::TILEFORMER_UNIT {

// Exponentiates a finished score tile into P, in slices that the next tile's product takes between its steps.
// O is divided by the sum of P as it was rounded; kExactSum keeps the sum before rounding too, for lse.
template <bool kExactSum>
struct Exponentiate {
  static constexpr int kSlices = kKeyRows / kElementsPerWord * kVecs;
  const float* scores;  // [kKeyRows][kLanes]
  Word* p;              // [kKeyRows / kElementsPerWord][kLanes]; may be where the scores are
  LaneGroup* group;
  F score_scale;  // raw scores to log2 units; unused where Q was scaled
  F sum[kVecs], exact_sum[kVecs];

  TF_MEMBER void begin() {
    TF_UNROLL for (int j = 0; j < kVecs; ++j) {
      sum[j] = load(group->block_sum + j * kVecLanes);
      if constexpr (kExactSum) exact_sum[j] = load(group->exact_block_sum + j * kVecLanes);
    }
  }
  TF_MEMBER void end() {
    TF_UNROLL for (int j = 0; j < kVecs; ++j) {
      store(group->block_sum + j * kVecLanes, sum[j]);
      if constexpr (kExactSum) store(group->exact_block_sum + j * kVecLanes, exact_sum[j]);
    }
  }
  TF_MEMBER void slice(int c) {
    const int pair = c / kVecs, j = c % kVecs, lane = j * kVecLanes;
    const F neg_max = load(group->neg_max + lane);
    F e[kElementsPerWord];
    TF_UNROLL for (int i = 0; i < kElementsPerWord; ++i) {
      const F s = load(scores + (pair * kElementsPerWord + i) * kLanes + lane);
      e[i] = exp2_score(kScaledQuery ? add(s, neg_max) : fma(s, score_scale, neg_max));
    }
    store_probabilities(p + pair * kLanes + lane, sum[j], e);
    if constexpr (kExactSum)
      TF_UNROLL for (int i = 0; i < kElementsPerWord; ++i) exact_sum[j] = add(exact_sum[j], e[i]);
  }
};

TF_INLINE bool exceeds(const TileMax& tile, const LaneGroup& g) {
  M over = greater(tile.lane[0], load(g.threshold));
  TF_UNROLL for (int j = 1; j < kVecs; ++j) over =
      either(over, greater(tile.lane[j], load(g.threshold + j * kVecLanes)));
  return any(over);
}

// Raises m of every lane whose score in the tile calls for it; P [words][kLanes] of this block, l and O
// follow.
TF_COLD void raise_max(const TileMax& tile, float score_scale, LaneGroup& g, Word* p, int words, float* o,
                       std::int64_t o_rows) {
  for (int j = 0; j < kVecs; ++j) {
    const int lane = j * kVecLanes;
    const F old_threshold = load(g.threshold + lane), old_max = sub(zero(), load(g.neg_max + lane));
    const M fresh = equal(old_threshold, set(-kInfinity));
    // Only the lanes that call for it: what a row computes depends on nothing but itself.
    const M move = greater(tile.lane[j], old_threshold);
    if (!any(move)) continue;
    const F largest = round(mul(tile.lane[j], set(score_scale)));
    const F m = select(move, add(largest, select(fresh, zero(), set(kHeadroom))), old_max);
    const F factor = select(move, select(fresh, zero(), exp2_whole(sub(old_max, m))), set(1.0f));
    store(g.neg_max + lane, sub(zero(), m));
    store(g.threshold + lane, select(move, div(add(m, set(kThreshold)), set(score_scale)), old_threshold));
    float* const sums[] = {g.sum, g.exact_sum, g.block_sum, g.exact_block_sum};
    for (float* sum : sums) store(sum + lane, mul(factor, load(sum + lane)));
    for (int i = 0; i < words; ++i) rescale_probabilities(p + i * kLanes + lane, factor);
    if (g.started)
      for (std::int64_t d = 0; d < o_rows; ++d)
        store(o + d * kLanes + lane, mul(factor, load(o + d * kLanes + lane)));
  }
}

}  // namespace tileformer::TILEFORMER_UNIT
