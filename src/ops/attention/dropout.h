// Dropout of a block of P, by the counters that philox.h defines. Included by kernels only.
#pragma once

#include "ops/attention/lane_group.h"

namespace tileformer::TILEFORMER_UNIT {

// Philox4x32-10 of one counter per lane; c holds the counters and receives the words.
TF_NOINLINE void philox_lanes(std::uint32_t (&c)[4][kLanes], std::uint32_t k0, std::uint32_t k1) {
  for (int round = 0; round < 10; ++round, k0 += 0x9E3779B9u, k1 += 0xBB67AE85u)
    for (int l = 0; l < kLanes; ++l) {
      const std::uint64_t p0 = std::uint64_t{0xD2511F53u} * c[0][l],
                          p1 = std::uint64_t{0xCD9E8D57u} * c[2][l];
      const std::uint32_t n0 = static_cast<std::uint32_t>(p1 >> 32) ^ c[1][l] ^ k0;
      const std::uint32_t n2 = static_cast<std::uint32_t>(p0 >> 32) ^ c[3][l] ^ k1;
      c[1][l] = static_cast<std::uint32_t>(p1);
      c[3][l] = static_cast<std::uint32_t>(p0);
      c[0][l] = n0;
      c[2][l] = n2;
    }
}

// Which of the keys 4 * four .. 4 * four + 3 each lane drops.
TF_NOINLINE void dropped_keys(const KernelArgs& a, std::int64_t sequence, std::int64_t kv_head,
                              const LaneGroup& g, int four, std::uint8_t (&drop)[4][kLanes]) {
  std::uint32_t c[4][kLanes];
  for (int l = 0; l < kLanes; ++l) {
    c[0][l] = static_cast<std::uint32_t>(four);
    c[1][l] = static_cast<std::uint32_t>(g.query[l]);
    c[2][l] = static_cast<std::uint32_t>(sequence * a.kv_heads * a.group + kv_head * a.group + g.head[l]);
    c[3][l] = a.dropout_counter;
  }
  philox_lanes(c, a.dropout_key[0], a.dropout_key[1]);
  for (int w = 0; w < 4; ++w)
    for (int l = 0; l < kLanes; ++l) drop[w][l] = c[w][l] < a.dropout_threshold;
}

// Keys [begin, end) of a block whose first key is the sequence's first_key; begin, end multiples of kKeyRows.
TF_NOINLINE void drop_block(const KernelArgs& a, std::int64_t sequence, std::int64_t kv_head,
                            const LaneGroup& g, int first_key, int begin, int end, Word* p) {
  alignas(64) std::uint8_t drop[4][kLanes];
  int four = -1;
  for (int i = begin; i < end; i += kElementsPerWord) {
    const int key = first_key + i;
    if (key / 4 != four) dropped_keys(a, sequence, kv_head, g, four = key / 4, drop);
    for (int lane = 0; lane < kLanes; lane += kVecLanes) {
      M m[kElementsPerWord];
      TF_UNROLL for (int e = 0; e < kElementsPerWord; ++e) m[e] = nonzero_bytes(drop[(key + e) % 4] + lane);
      drop_probabilities(p + i / kElementsPerWord * kLanes + lane, m);
    }
  }
}

}  // namespace tileformer::TILEFORMER_UNIT
