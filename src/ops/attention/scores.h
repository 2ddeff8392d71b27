// Score tiles [key][lane] between the product and the exponential: scale, softcap, bias, and what is
// excluded. Included by kernels only.
#pragma once

#include "ops/attention/mask_block.h"

namespace tileformer::TILEFORMER_UNIT {

struct NoCompanion {
  static constexpr int kSlices = 1;
  TF_MEMBER void begin() {}
  TF_MEMBER void slice(int) {}
  TF_MEMBER void end() {}
};

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
          if (cap_slope) store(cap_slope + (part + r) * kLanes + lane, sub(set(1.0f), mul(t, t)));
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
