// Runs experts, forward and backward, on every unit that this machine can run, natively or emulated.
#pragma once

#include <vector>

#include "ops/moe/experts/units.h"
#include "run_planned.h"
#include "tileformer/fused_experts_backward.h"

namespace tileformer::test {

using ExpertsTarget = UnitTarget<moe::Unit>;

// Those that differ in this dtype: units of bf16 leave others to a unit that is a target too.
inline std::vector<ExpertsTarget> experts_targets(DType dtype) {
  static const std::vector<ExpertsTarget> all = unit_targets(moe::units());
  std::vector<ExpertsTarget> chosen;
  for (const ExpertsTarget& target : all)
    if (dtype == DType::bf16 || !target.test_unit || !target.test_unit->bf16_only) chosen.push_back(target);
  return chosen;
}

inline Status run_experts(const ExpertsTarget& target, const FusedExpertsArgs& args,
                          Executor& executor = serial_executor(), Edge workspace_edge = Edge::end) {
  return run_planned(target, args, executor, workspace_edge, plan_fused_experts, fused_experts);
}

// With gate_up_out in args: after run_experts.
inline Status run_experts_backward(const ExpertsTarget& target, const FusedExpertsBackwardArgs& args,
                                   Executor& executor = serial_executor(), Edge workspace_edge = Edge::end) {
  return run_planned(target, args, executor, workspace_edge, plan_fused_experts_backward,
                     fused_experts_backward);
}

}  // namespace tileformer::test
