// The phases of a planned call, one after the other.
#pragma once

#include <cstdint>

#include "ops/moe/experts/plan.h"
#include "tileformer/executor.h"

namespace tileformer::moe {

// The pairs in the order of their experts.
struct PairLists {
  const std::int64_t* offsets;  // [experts + 1]: the first pair of each expert
  const std::int32_t* token;    // of each pair
  const float* weight;
};

Status run_forward(const FusedExpertsArgs& args, const Problem& problem, const Unit& unit,
                   const PairLists& pairs, const FusedExpertsPlan& plan, Workspace workspace,
                   Executor& executor);

}  // namespace tileformer::moe
