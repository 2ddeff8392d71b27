// Online softmax on score tiles [key][lane]: what a product's companion does for the tile before, and the
// rare rescale. Included by kernels only.
#pragma once

#include "ops/attention/mask_block.h"

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
      sum[j] = load(group->sum + j * kVecLanes);
      if constexpr (kExactSum) exact_sum[j] = load(group->exact_sum + j * kVecLanes);
    }
  }
  TF_MEMBER void end() {
    TF_UNROLL for (int j = 0; j < kVecs; ++j) {
      store(group->sum + j * kVecLanes, sum[j]);
      if constexpr (kExactSum) store(group->exact_sum + j * kVecLanes, exact_sum[j]);
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

struct NoCompanion {
  static constexpr int kSlices = 1;
  TF_MEMBER void begin() {}
  TF_MEMBER void slice(int) {}
  TF_MEMBER void end() {}
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
    store(g.sum + lane, mul(factor, load(g.sum + lane)));
    store(g.exact_sum + lane, mul(factor, load(g.exact_sum + lane)));
    for (int i = 0; i < words; ++i) rescale_probabilities(p + i * kLanes + lane, factor);
    if (g.started)
      for (std::int64_t d = 0; d < o_rows; ++d)
        store(o + d * kLanes + lane, mul(factor, load(o + d * kLanes + lane)));
  }
}

// Rows that are adjusted together, in registers: a divisor of kKeyRows.
inline constexpr int kAdjustRows = kKeyRows % 6 == 0 ? 6 : 4;
static_assert(kKeyRows % kAdjustRows == 0);

// What beside scale and exponentiation happens to scores, once for a call.
struct ScoreOptions {
  bool modified;  // any of the following
  float to_cap;   // before tanh
  float cap;      // after tanh, log2 units; 0: no softcap
  float to_log2;  // without softcap; 1 where Q was scaled
  bool bias, allowed, alibi;
};

TF_INLINE ScoreOptions score_options(const KernelArgs& a) {
  ScoreOptions o;
  o.bias = a.mask.data && a.mask.dtype != DType::boolean;
  o.allowed = a.mask.data && a.mask.dtype == DType::boolean;
  o.alibi = a.slopes.data != nullptr;
  o.modified = o.bias || o.allowed || o.alibi || a.softcap > 0;
  o.cap = a.softcap > 0 ? a.softcap * kLog2E : 0;
  o.to_cap = kScaledQuery ? 1 : a.scale / (a.softcap > 0 ? a.softcap : 1);
  o.to_log2 = kScaledQuery ? 1 : a.scale * kLog2E;
  return o;
}

// What Q is multiplied by when it is packed (fp32 words only).
TF_INLINE float query_factor(const KernelArgs& a) {
  return a.softcap > 0 ? a.scale / a.softcap : a.scale * kLog2E;
}

// Turns a tile of raw scores, whose first key is the sequence's `key` and row `row` of the mask block, into
// log2 units (if modified) and excludes what its queries do not see. Returns the new largest scores.
// cap_slope: receives the derivative of the softcap, if there is one (backward); null: not wanted.
TF_NOINLINE TileMax adjust_tile(const ScoreOptions& options, const LaneGroup& g, const MaskBlock& mask,
                                float* s, int key, int row, float* cap_slope = nullptr) {
  const F excluded = set(-kInfinity);
  const bool at_edge = key < g.begin_max || key + kKeyRows > g.end_min;
  TileMax largest;
  for (int j = 0; j < kVecs; ++j) largest.lane[j] = excluded;
  for (int part = 0; part < kKeyRows; part += kAdjustRows)
    for (int j = 0; j < kVecs; ++j) {
      const int lane = j * kVecLanes;
      float* at = s + part * kLanes + lane;
      F x[kAdjustRows];
      TF_UNROLL for (int r = 0; r < kAdjustRows; ++r) x[r] = load(at + r * kLanes);
      if (options.cap != 0) {
        for (int r = 0; r < kAdjustRows; ++r) {
          const F t = tanh(mul(x[r], set(options.to_cap)));
          x[r] = mul(t, set(options.cap));
          if (cap_slope)
            store(cap_slope + (part + r) * kLanes + lane, sub(set(1.0f), mul(t, t)));
        }
      } else if (!kScaledQuery && options.modified) {
        TF_UNROLL for (int r = 0; r < kAdjustRows; ++r) x[r] = mul(x[r], set(options.to_log2));
      }
      if (options.bias) {
        const float* bias = mask.bias + (row + part) * kLanes + lane;
        TF_UNROLL for (int r = 0; r < kAdjustRows; ++r) {
          const F b = load(bias + r * kLanes);
          x[r] = select(equal(b, excluded), excluded, add(x[r], b));
        }
      }
      if (options.alibi) {
        const F slope = load(g.slope + lane);
        F distance = sub(load(g.position + lane), set(static_cast<float>(key + part)));
        TF_UNROLL for (int r = 0; r < kAdjustRows; ++r) {
          x[r] = sub(x[r], mul(slope, abs(distance)));
          distance = sub(distance, set(1.0f));
        }
      }
      if (options.allowed) {
        const std::uint8_t* allowed = mask.allowed + (row + part) * kLanes + lane;
        TF_UNROLL for (int r = 0; r < kAdjustRows; ++r) x[r] =
            select(nonzero_bytes(allowed + r * kLanes), x[r], excluded);
      }
      if (at_edge) {
        const I begin = load_int(g.begin + lane), end = load_int(g.end + lane);
        TF_UNROLL for (int r = 0; r < kAdjustRows; ++r) {
          const I k = set_int(key + part + r);
          x[r] =
              select(both(greater_int(end, k), greater_int(add_int(k, set_int(1)), begin)), x[r], excluded);
        }
      }
      TF_UNROLL for (int r = 0; r < kAdjustRows; ++r) {
        largest.lane[j] = max(largest.lane[j], x[r]);
        store(at + r * kLanes, x[r]);
      }
    }
  return largest;
}

}  // namespace tileformer::TILEFORMER_UNIT
