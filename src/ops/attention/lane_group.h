// The queries of one tile, one in each lane, with their softmax state. Included by kernels only.
#pragma once

#include "ops/attention/visible_keys.h"

namespace tileformer::TILEFORMER_UNIT {

using attention::Task;

// A probability is 2^(score - m), scores in log2 units. m is whole, so that a change of m scales by an exact
// power of two. It starts at the first tile's largest score and moves only when a score exceeds it by
// kThreshold; it is then set kHeadroom above that score, so that scores which keep growing along the keys
// cost a rescale every 48 powers of two. (Headroom from the start would cost the exponent's last bits in
// every row.) fp32 sums of 2^32 times 2^17 keys times |v| < 2^78 do not overflow, and what is 2^-110 of the
// largest weight becomes zero.
inline constexpr float kThreshold = 32;
inline constexpr float kHeadroom = 16;

struct alignas(64) LaneGroup {
  float neg_max[kLanes];    // -m
  float threshold[kLanes];  // m + kThreshold in units of raw scores; -inf: no score yet
  float sum[kLanes];        // of probabilities as they are multiplied
  float exact_sum[kLanes];  // before they were rounded to 16 bits, if kept
  // The same of the current key block: a sum of block sums is rounded less than one long sum.
  float block_sum[kLanes], exact_block_sum[kLanes];
  // Keys [begin, end) that the lane's query may see, by everything but the mask. No query: none is excluded,
  // so that empty lanes do not make tiles special; what they compute is never written.
  std::int32_t begin[kLanes], end[kLanes];
  float position[kLanes];  // of the query on the keys' axis, for ALiBi
  float slope[kLanes];     // ALiBi times log2(e)
  std::int32_t head[kLanes],
      query[kLanes];  // within the kv head's group, within the sequence; query -1: empty lane
  // Over the lanes that hold a query.
  std::int32_t begin_min, begin_max, end_min, end_max;
  bool started;  // O holds something
};

// Short sequences of queries share tiles between the heads of a group: lane l is head l / queries. Otherwise
// a tile holds neighbours of one head, and the heads of a group follow each other, so that a mask block
// serves all of them.
TF_INLINE bool folds_heads(const KernelArgs& a, const KernelSequence& s) {
  return a.group > 1 && s.queries < kLanes;
}

TF_NOINLINE void init_group(const KernelArgs& a, const KernelSequence& s, std::int64_t kv_head,
                            std::int64_t index, LaneGroup& g) {
  const bool folded = folds_heads(a, s);
  g.begin_min = g.end_min = 0x7fffffff;
  g.begin_max = g.end_max = 0;
  g.started = false;
  for (int l = 0; l < kLanes; ++l) {
    g.neg_max[l] = 0;
    g.threshold[l] = -kInfinity;
    g.sum[l] = g.exact_sum[l] = g.block_sum[l] = g.exact_block_sum[l] = 0;
    std::int64_t head, query;
    if (folded) {
      const std::int64_t row = index * kLanes + l;
      head = row / s.queries;
      query = row % s.queries;
    } else {
      head = index % a.group;
      query = index / a.group * kLanes + l;
    }
    if (head >= a.group || query >= s.queries) {
      g.begin[l] = 0;
      g.end[l] = 0x7fffffff;
      g.position[l] = g.slope[l] = 0;
      g.head[l] = 0;
      g.query[l] = -1;
      continue;
    }
    std::int64_t begin = first_visible(a, s, query), end = end_visible(a, s, query);
    if (begin >= end) begin = end = 0;
    g.begin[l] = static_cast<std::int32_t>(begin);
    g.end[l] = static_cast<std::int32_t>(end);
    g.begin_min = min_of(g.begin_min, g.begin[l]);
    g.begin_max = max_of(g.begin_max, g.begin[l]);
    g.end_min = min_of(g.end_min, g.end[l]);
    g.end_max = max_of(g.end_max, g.end[l]);
    g.position[l] = static_cast<float>(query + s.diagonal);
    g.head[l] = static_cast<std::int32_t>(head);
    g.query[l] = static_cast<std::int32_t>(query);
    g.slope[l] = 0;
    if (a.slopes.data) {
      const std::int64_t sequence = &s - a.sequences;
      g.slope[l] =
          kLog2E * static_cast<const float*>(
                       a.slopes.data)[sequence * a.slopes.batch + (kv_head * a.group + head) * a.slopes.head];
    }
  }
}

// A row that sees nothing makes begin_min 0 and end_min 0, which only widens what is looked at.

}  // namespace tileformer::TILEFORMER_UNIT
