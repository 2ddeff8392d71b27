// A planned call on one unit, with a workspace that ends at a page that must not be touched.
#pragma once

#include <type_traits>

#include "guarded_memory.h"
#include "tileformer/executor.h"
#include "tileformer/workspace.h"
#include "unit_targets.h"

namespace tileformer::test {

// Plans and runs with exactly the workspace that the plan asks for, filled with NaN.
template <typename Unit, typename Args, typename Plan>
Status run_planned(const UnitTarget<Unit>& target, const Args& args, Executor& executor, Edge workspace_edge,
                   Status (*make_plan)(const Args&, int threads, Plan*),
                   std::type_identity_t<Status (*)(const Args&, const Plan&, Workspace, Executor&)> run) {
  const ForcedUnit<Unit> forced(target);
  if (!forced.status()) return forced.status();
  Plan plan;
  if (Status status = make_plan(args, executor.threads(), &plan); !status) return status;
  const GuardedMemory workspace(plan.workspace_bytes, workspace_edge);
  return run(args, plan, {workspace.data(), plan.workspace_bytes}, executor);
}

}  // namespace tileformer::test
