// Runs attention, forward and backward, on every unit that this machine can run, natively or emulated.
#pragma once

#include <string>
#include <type_traits>
#include <vector>

#include "guarded_memory.h"
#include "ops/attention/unit_table.h"
#include "tileformer/attention_backward.h"
#include "unit_targets.h"

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

// Plans and runs with exactly the workspace that the plan asks for, filled with NaN.
template <typename Args, typename Plan>
Status run_planned(const Target& target, const Args& args, Executor& executor, Edge workspace_edge,
                   Status (*make_plan)(const Args&, int threads, Plan*),
                   std::type_identity_t<Status (*)(const Args&, const Plan&, Workspace, Executor&)> run) {
  const Forced forced(target);
  if (!forced.status()) return forced.status();
  Plan plan;
  if (Status status = make_plan(args, executor.threads(), &plan); !status) return status;
  const GuardedMemory workspace(plan.workspace_bytes, workspace_edge);
  return run(args, plan, {workspace.data(), plan.workspace_bytes}, executor);
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
