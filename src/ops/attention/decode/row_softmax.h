// Online softmax over rows of scores [row][key]: the lanes are keys. Included by kernels only.
#pragma once

#include "ops/attention/decode/row_state.h"
#include "ops/attention/scores.h"

namespace tileformer::TILEFORMER_UNIT {

// One chunk of keys: the first one's position, how many there are; the rest up to `padded` is excluded.
struct Chunk {
  int first, keys, padded;
};

// Scores of one row into log2 units (if options.modified), minus infinity where the row does not see the key.
TF_NOINLINE void adjust_row(const ScoreOptions& options, const KernelArgs& a, const DecodeScratch& x,
                            const Chunk& chunk, int row, float position) {
  float* s = x.scores + row * kChunkKeys;
  alignas(64) std::int32_t lanes[kVecLanes];
  alignas(64) float steps[kVecLanes];
  for (int l = 0; l < kVecLanes; ++l) {
    lanes[l] = l;
    steps[l] = static_cast<float>(l);
  }
  const I begin = set_int(x.rows.begin[row]), end = set_int(x.rows.end[row]);
  for (int k = 0; k < chunk.padded; k += kVecLanes) {
    F score = load(s + k);
    if (a.key_scale.data) score = mul(score, load(x.key_scales + k));
    if (options.cap != 0)
      score = mul(tanh(mul(score, set(options.to_cap))), set(options.cap));
    else if (!kScaledQuery && options.modified)
      score = mul(score, set(options.to_log2));
    if (options.alibi) {
      const F distance = sub(set(position - static_cast<float>(chunk.first + k)), load(steps));
      score = sub(score, mul(set(x.slopes[row]), abs(distance)));
    }
    const I key = add_int(set_int(chunk.first + k), load_int(lanes));
    const M seen = both(greater_int(end, key), greater_int(add_int(key, set_int(1)), begin));
    store(s + k, select(seen, score, set(-kInfinity)));
  }
}

// Turns the chunk's scores into probabilities; m, the sums and O of the state follow.
TF_NOINLINE void row_probabilities(const KernelArgs& a, const ScoreOptions& options, const DecodeScratch& x,
                                   const KernelSequence& s, const Chunk& chunk, const RowState& state) {
  const Rows& rows = x.rows;
  const bool modified = options.modified || a.key_scale.data;
  for (int r = 0; r < rows.count; ++r) {
    if (modified || chunk.first < rows.begin[r] || chunk.first + chunk.padded > rows.end[r])
      adjust_row(options, a, x, chunk, r, static_cast<float>(r % s.queries + s.diagonal));
    const float* at = x.scores + r * kChunkKeys;
    F largest = load(at);
    for (int k = kVecLanes; k < chunk.padded; k += kVecLanes) largest = max(load(at + k), largest);
    store(x.row_max + r * kVecLanes, max(largest, set(-kInfinity)));  // a NaN gives way
  }
  const float scale = options.modified ? 1 : options.to_log2;
  alignas(64) float largest[kVecLanes], factor[kVecLanes];
  for (int first = 0; first < rows.count; first += kVecLanes) {
    const int n = min_of(rows.count - first, kVecLanes);
    for (int r = 0; r < kVecLanes; ++r) {
      const float* lanes = x.row_max + (first + min_of(r, n - 1)) * kVecLanes;
      float l = lanes[0];
      for (int i = 1; i < kVecLanes; ++i) l = lanes[i] > l ? lanes[i] : l;
      largest[r] = l;
    }
    const F old_m = load(state.m + first);
    const F m = max(old_m, round(mul(load(largest), set(scale))));
    const M rises = greater(m, old_m);
    if (!any(rises)) continue;
    // From -inf there is nothing to scale: O and the sums are zero.
    store(factor, select(both(rises, greater(old_m, set(-kInfinity))), exp2_whole(sub(old_m, m)), set(1.0f)));
    store(state.m + first, m);
    for (int r = 0; r < n; ++r) {
      if (factor[r] == 1) continue;
      const F f = set(factor[r]);
      const int row = first + r;
      store(state.sum + row * kVecLanes, mul(f, load(state.sum + row * kVecLanes)));
      store(state.exact_sum + row * kVecLanes, mul(f, load(state.exact_sum + row * kVecLanes)));
      float* o = state.o + row * x.o_stride;
      for (std::int64_t d = 0; d < x.o_stride; d += kVecLanes) store(o + d, mul(f, load(o + d)));
    }
  }
  const F scales = set(scale);
  for (int r = 0; r < rows.count; ++r) {
    const float* at = x.scores + r * kChunkKeys;
    Word* p = x.probabilities + r * kChunkWords;
    const F neg_m = set(state.m[r] == -kInfinity ? 0.0f : -state.m[r]);
    F sum = load(state.sum + r * kVecLanes), exact_sum = load(state.exact_sum + r * kVecLanes);
    if (a.value_scale.data)
      for (int k = 0; k < chunk.padded; k += kVecLanes)
        store_row_probabilities(p + k / kElementsPerWord, exp2_score(fma(load(at + k), scales, neg_m)),
                                load(x.weights + k), sum, exact_sum);
    else
      for (int k = 0; k < chunk.padded; k += kVecLanes)
        store_row_probabilities(p + k / kElementsPerWord, exp2_score(fma(load(at + k), scales, neg_m)), sum,
                                exact_sum);
    store(state.sum + r * kVecLanes, sum);
    store(state.exact_sum + r * kVecLanes, exact_sum);
  }
}

}  // namespace tileformer::TILEFORMER_UNIT
