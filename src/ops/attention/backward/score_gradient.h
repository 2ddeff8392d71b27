// What happens to score tiles [key][lane] in the backward, cut into slices that a product takes between its
// steps: probabilities from scores, then the gradients of the scores. Included by kernels only.
#pragma once

#include "ops/attention/backward/lanes.h"
#include "ops/attention/scores.h"

namespace tileformer::TILEFORMER_UNIT {

// P = exp(score - lse), kept in fp32 where the scores were, and as the rows that dV is multiplied from.
template <bool kGeneral>
struct Probabilities {
  static constexpr int kSlices = kKeyRows;
  float* scores;  // [kKeyRows][kLanes]
  Word* rows;     // [kKeyRows][kLaneWords]; where kElementsPerWord is 1, the same memory as scores
  const GradientLanes* group;
  F score_scale;  // raw scores to log2 units; unused where Q was scaled

  // fp32 takes the difference in natural units, in which lse was rounded: where one key has all the weight it
  // is zero then, however large the score. bf16 rounds P by more than what this is about.
  TF_MEMBER F exponent(F s, int lane) const {
    const F neg_max = load(group->neg_max + lane);
    if constexpr (!kScaledQuery) {
      const F x = fma(s, score_scale, neg_max);
      return kGeneral ? add(x, load(group->neg_log_sum + lane)) : x;
    } else {
      const F x = mul(add(rounded(mul(s, set(kLn2))), load(group->neg_lse + lane)), set(kLog2E));
      if constexpr (!kGeneral) return x;
      const F log_sum = load(group->neg_log_sum + lane);
      return select(equal(log_sum, zero()), x, add(add(s, neg_max), log_sum));
    }
  }

  TF_MEMBER void begin() {}
  TF_MEMBER void end() {}
  TF_MEMBER void slice(int r) {
    F p[kVecs];
    TF_UNROLL for (int j = 0; j < kVecs; ++j) {
      float* at = scores + r * kLanes + j * kVecLanes;
      p[j] = exp2_score(exponent(load(at), j * kVecLanes));
      store(at, p[j]);
    }
    if constexpr (kElementsPerWord > 1) store_lane_row(rows + r * kLaneWords, p);
  }
};

// What the rare options need beside P and dP.
struct GradientOptions {
  const std::uint8_t* drop;  // [key_block][kLanes]: not zero where dropped; null: no dropout
  float dropout_scale;
  const float* cap_slope;  // [kKeyRows][kLanes]; null: no softcap
  float* score_gradients;  // [key_block][kLanes]: dS before the softcap's derivative; null: not wanted
};

// dS = P (m dP - D) cap', as rows for dK and as packed pairs of keys for dQ.
template <bool kGeneral>
struct ScoreGradient {
  static constexpr int kSlices = kKeyRows / kElementsPerWord;
  const float* p;   // [kKeyRows][kLanes]
  const float* dp;  // [kKeyRows][kLanes]; may be where the rows go
  Word* rows;       // [kKeyRows][kLaneWords]
  Word* packed;     // [kKeyRows / kElementsPerWord][kLanes]; the same as rows where kElementsPerWord is 1
  const GradientLanes* group;
  const GradientOptions* options;
  int row;  // of the tile in the key block

  TF_MEMBER void begin() {}
  TF_MEMBER void end() {}
  TF_MEMBER void slice(int c) {
    F ds[kElementsPerWord][kVecs];
    TF_UNROLL for (int i = 0; i < kElementsPerWord; ++i) TF_UNROLL for (int j = 0; j < kVecs; ++j) {
      const int r = c * kElementsPerWord + i, lane = j * kVecLanes, at = r * kLanes + lane;
      F d = load(dp + at);
      if constexpr (kGeneral)
        if (options->drop)
          d = select(nonzero_bytes(options->drop + (row + r) * kLanes + lane), zero(),
                     mul(d, set(options->dropout_scale)));
      d = mul(load(p + at), add(d, load(group->neg_row_term + lane)));
      if constexpr (kGeneral) {
        if (options->score_gradients) store(options->score_gradients + row * kLanes + at, d);
        if (options->cap_slope) d = mul(d, load(options->cap_slope + at));
      }
      ds[i][j] = d;
    }
    TF_UNROLL for (int i = 0; i < kElementsPerWord; ++i)
        store_lane_row(rows + (c * kElementsPerWord + i) * kLaneWords, ds[i]);
    if constexpr (kElementsPerWord > 1) store_lane_pairs(packed + c * kLanes, ds);
  }
};

}  // namespace tileformer::TILEFORMER_UNIT
