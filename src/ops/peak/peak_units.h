// The measured peak of every compiled unit, and what its loads and stores get from memory.
#pragma once

#include <cstdint>

namespace tileformer {

struct PeakUnit {
  const char* name;
  // Multiplies operands made of 512 random words (bf16 pairs, or fp32 of moderate size) `rounds` times;
  // returns the floating-point operations of a round.
  double (*multiply)(const std::uint32_t* random, std::int64_t rounds);
};

// data: aligned to a line of 64 bytes. floats: a multiple of 1024.
struct BandwidthUnit {
  const char* name;
  // Loads everything once. ahead: how many lines earlier each is prefetched, 0 for not at all.
  void (*read)(const float* data, std::int64_t floats, std::int64_t ahead);
  // Stores everything once.
  void (*write)(float* data, std::int64_t floats, bool past_caches);
};

}  // namespace tileformer
