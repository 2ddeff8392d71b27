// The phases of a planned call, one after the other.
#pragma once

#include "ops/moe/experts/pairs.h"
#include "ops/moe/experts/plan.h"
#include "tileformer/executor.h"

namespace tileformer::moe {

Status run_forward(const FusedExpertsArgs& args, const Problem& problem, const Unit& unit,
                   const PairLists& pairs, const FusedExpertsPlan& plan, Workspace workspace,
                   Executor& executor);

}  // namespace tileformer::moe
