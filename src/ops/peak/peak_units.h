// The measured peak of every compiled unit.
#pragma once

#include <cstdint>

namespace tileformer {

struct PeakUnit {
  const char* name;
  // Multiplies operands made of 512 random words (bf16 pairs, or fp32 of moderate size) `rounds` times;
  // returns the floating-point operations of a round.
  double (*multiply)(const std::uint32_t* random, std::int64_t rounds);
};

}  // namespace tileformer
