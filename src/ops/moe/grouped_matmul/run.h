// The phases of a planned call, one after the other.
#pragma once

#include <cstdint>
#include <vector>

#include "ops/moe/grouped_matmul/plan.h"
#include "tileformer/executor.h"

namespace tileformer::moe::grouped {

// Expert e has the rows from offsets[e] to before offsets[e + 1].
Status run_product(const GroupedMatmulArgs& args, const Unit& unit, const std::vector<std::int64_t>& offsets,
                   const GroupedMatmulPlan& plan, Workspace workspace, Executor& executor);

// grad_weight and grad_bias.
Status run_weight_gradient(const GroupedMatmulBackwardArgs& args, const Unit& unit,
                           const std::vector<std::int64_t>& offsets, const GroupedMatmulBackwardPlan& plan,
                           Workspace workspace, Executor& executor);

}  // namespace tileformer::moe::grouped
