// The pairs of a call in the order of their experts, as the kernels take them.
#pragma once

#include <cstdint>
#include <vector>

#include "ops/moe/dispatch.h"
#include "ops/moe/experts/problem.h"
#include "tileformer/fused_experts.h"

namespace tileformer::moe {

// Views of a SortedPairs.
struct PairLists {
  const std::int64_t* offsets;  // [experts + 1]: the first pair of each expert
  const std::int32_t* token;    // [valid pairs]
  const std::int32_t* slot;
  const float* weight;
};

class SortedPairs {
 public:
  // Reads the indices and the weights of args. The first wrong index is the error.
  Status sort(const FusedExpertsArgs& args, const Problem& problem);

  PairLists lists() const { return {offsets_.data(), token_.data(), slot_.data(), weight_.data()}; }

 private:
  std::vector<std::int64_t> offsets_;
  std::vector<std::int32_t> token_, slot_;
  std::vector<float> weight_;
};

}  // namespace tileformer::moe
