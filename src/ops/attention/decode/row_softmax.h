// Online softmax over rows of scores [row][key]: the lanes are keys. Included by kernels only.
#pragma once

#include "ops/attention/decode/row_state.h"
#include "ops/attention/scores.h"

namespace tileformer::TILEFORMER_UNIT {

// One chunk of keys: the first one's position, how many there are; the rest up to `padded` is excluded.
struct Chunk {
  int first, keys, padded;
};

// The lanes, counted.
alignas(64) inline constexpr std::int32_t kLaneIndex[16] = {0, 1, 2,  3,  4,  5,  6,  7,
                                                            8, 9, 10, 11, 12, 13, 14, 15};

// Which of kVecLanes keys from the chunk's key k on the row sees.
TF_INLINE M seen_keys(const Rows& rows, const Chunk& chunk, int row, int k) {
  const I key = add_int(set_int(chunk.first + k), load_int(kLaneIndex));
  return both(greater_int(set_int(rows.end[row]), key),
              greater_int(add_int(key, set_int(1)), set_int(rows.begin[row])));
}

// Scores of one row into log2 units (if options.modified), minus infinity where the row does not see the key.
TF_NOINLINE void adjust_row(const ScoreOptions& options, const KernelArgs& a, const DecodeScratch& x,
                            const Chunk& chunk, int row, float position, float query_scale) {
  float* s = x.scores + row * kChunkKeys;
  for (int k = 0; k < chunk.padded; k += kVecLanes) {
    F score = load(s + k);
    if (a.key_scale.data) score = mul(score, mul(set(query_scale), load(x.key_scales + k)));
    if (options.cap != 0)
      score = mul(tanh(mul(score, set(options.to_cap))), set(options.cap));
    else if (!kScaledQuery && options.modified)
      score = mul(score, set(options.to_log2));
    if (options.alibi) {
      const F distance =
          sub(set(position - static_cast<float>(chunk.first + k)), to_float(load_int(kLaneIndex)));
      score = sub(score, mul(set(x.slopes[row]), abs(distance)));
    }
    store(s + k, select(seen_keys(x.rows, chunk, row, k), score, set(-kInfinity)));
  }
}

// One row's probabilities times the weights of the keys that it sees, as whole numbers of the largest one;
// returns their unit: NaN if one of them is not finite.
TF_NOINLINE float whole_probabilities(const DecodeScratch& x, const Chunk& chunk, int row, F scale, F neg_m,
                                      Word* p, F& sum) {
  float* s = x.scores + row * kChunkKeys;
  alignas(64) float lanes[kVecLanes];
  F largest = zero(), bad = zero();
  for (int k = 0; k < chunk.padded; k += kVecLanes) {
    const F e = exp2_score(fma(load(s + k), scale, neg_m));
    const F w = select(seen_keys(x.rows, chunk, row, k), mul(e, load(x.weights + k)), zero());
    sum = add(sum, e);
    largest = max(abs(w), largest);
    bad = fma(w, zero(), bad);
    store(s + k, w);
  }
  store(lanes, largest);
  float m = 0;
  for (float lane : lanes) m = lane > m ? lane : m;
  const bool finite = all(equal(bad, bad));
  const F to_whole = set(finite && m > 0 ? kLargestShort / m : 0);
  for (int k = 0; k < chunk.padded; k += kVecLanes)
    store_shorts(reinterpret_cast<std::int16_t*>(p) + k, finite ? mul(load(s + k), to_whole) : zero());
  return finite ? m / kLargestShort : kNaN;
}

// Turns the chunk's scores into probabilities; m, the sums and O of the state follow.
TF_NOINLINE void row_probabilities(const KernelArgs& a, const ScoreOptions& options, const DecodeScratch& x,
                                   const KernelSequence& s, const Chunk& chunk, const float* query_scales,
                                   bool whole, const RowState& state) {
  const Rows& rows = x.rows;
  const bool modified = options.modified || a.key_scale.data;
  for (int r = 0; r < rows.count; ++r) {
    if (modified || chunk.first < rows.begin[r] || chunk.first + chunk.padded > rows.end[r])
      adjust_row(options, a, x, chunk, r, static_cast<float>(r % s.queries + s.diagonal), query_scales[r]);
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
    if (whole)
      x.weight_scales[r] = whole_probabilities(x, chunk, r, scales, neg_m, p, sum);
    else if (a.value_scale.data)
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
