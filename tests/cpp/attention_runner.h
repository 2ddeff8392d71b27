// Runs attention, forward and backward, on every unit that this machine can run, natively or emulated.
#pragma once

#include <vector>

#include "ops/attention/unit_table.h"
#include "run_planned.h"
#include "tileformer/attention_backward.h"

namespace tileformer::test {

using Target = UnitTarget<attention::Unit>;
using Forced = ForcedUnit<attention::Unit>;

inline const std::vector<Target>& targets() {
  static const std::vector<Target> all = unit_targets(attention::units());
  return all;
}

// Those that differ in this dtype: units of bf16 leave others to a unit that is a target too.
inline std::vector<Target> targets_of(DType dtype) {
  std::vector<Target> chosen;
  for (const Target& target : targets()) {
    if (dtype == DType::bf16 || !target.test_unit || !target.test_unit->bf16_only) chosen.push_back(target);
  }
  return chosen;
}

inline Status run_attention(const Target& target, const AttentionArgs& args,
                            Executor& executor = serial_executor(), Edge workspace_edge = Edge::end) {
  return run_planned(target, args, executor, workspace_edge, plan_attention, attention_forward);
}

// From the out and lse in args, that is, after run_attention.
inline Status run_backward(const Target& target, const AttentionBackwardArgs& args,
                           Executor& executor = serial_executor(), Edge workspace_edge = Edge::end) {
  return run_planned(target, args, executor, workspace_edge, plan_attention_backward, attention_backward);
}

}  // namespace tileformer::test
