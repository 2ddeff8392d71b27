// The phases of a planned backward, one after the other.
#pragma once

#include "ops/moe/experts/backward/plan.h"
#include "ops/moe/experts/pairs.h"
#include "tileformer/executor.h"

namespace tileformer::moe {

Status run_backward(const FusedExpertsBackwardArgs& args, const Problem& problem, const BackwardUnit& unit,
                    const PairLists& pairs, const FusedExpertsBackwardPlan& plan, Workspace workspace,
                    Executor& executor);

}  // namespace tileformer::moe
