// Every argument of fused_experts, once, but the expert indices: those are read where the pairs are sorted by
// expert (ops/moe/dispatch.h). All later code trusts both.
#pragma once

#include "ops/moe/experts/problem.h"
#include "tileformer/fused_experts.h"
#include "tileformer/fused_experts_backward.h"

namespace tileformer::moe {

Status check(const FusedExpertsArgs& args, Problem* problem);

// Without out, which the backward does not need.
Status check_inputs(const FusedExpertsArgs& args, Problem* problem);

Status check(const FusedExpertsBackwardArgs& args, Problem* problem);

}  // namespace tileformer::moe
