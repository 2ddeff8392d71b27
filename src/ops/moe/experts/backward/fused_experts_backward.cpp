// The public entry of the backward: check, choose the unit, plan, sort the pairs by expert, run.
#include "tileformer/fused_experts_backward.h"

#include <cstring>
#include <string>

#include "ops/moe/experts/backward/run.h"
#include "ops/moe/experts/check.h"
#include "ops/moe/experts/units.h"

namespace tileformer {

using namespace moe;

namespace {

struct Prepared {
  Problem problem;
  Isa isa = Isa::portable;
  const Unit* unit = nullptr;  // null: the reference
  BackwardUnit kernels() const { return {*unit, backward_kernel_of(*unit)}; }
};

Status prepare(const FusedExpertsBackwardArgs& args, Prepared* p) {
  if (Status s = check(args, &p->problem); !s) return s;
  if (Status s = active_isa(&p->isa); !s) return s;
  if (args.forward.hidden.dtype == DType::f64) return Status::ok();
  return units().choose(args.forward.hidden.dtype, &p->unit);
}

FusedExpertsBackwardPlan plan_of(const FusedExpertsBackwardArgs& args, const Prepared& p, int threads) {
  if (p.unit) return plan_backward(args, p.problem, p.kernels(), p.isa, threads);
  FusedExpertsBackwardPlan plan;
  plan.isa = p.isa;
  plan.unit = "reference";
  plan.note = "float64 runs the reference loops, one thread";
  return plan;
}

Status run(const FusedExpertsBackwardArgs& args, const Prepared& p, const FusedExpertsBackwardPlan& plan,
           Workspace workspace, Executor& executor) {
  if (!p.unit) return fused_experts_backward_reference(args);
  SortedPairs pairs;
  if (Status s = pairs.sort(args.forward, p.problem); !s) return s;
  return run_backward(args, p.problem, p.kernels(), pairs.lists(), plan, workspace, executor);
}

}  // namespace

Status plan_fused_experts_backward(const FusedExpertsBackwardArgs& args, int threads,
                                   FusedExpertsBackwardPlan* plan) {
  Prepared p;
  if (Status s = prepare(args, &p); !s) return s;
  *plan = plan_of(args, p, threads);
  return Status::ok();
}

Status fused_experts_backward(const FusedExpertsBackwardArgs& args, const FusedExpertsBackwardPlan& plan,
                              Workspace workspace, Executor& executor) {
  Prepared p;
  if (Status s = prepare(args, &p); !s) return s;
  if (p.unit && std::strcmp(plan.unit, p.unit->label) != 0)
    return Status::invalid(std::string("plan: made for the unit ") + (*plan.unit ? plan.unit : "(none)") +
                           ", this call runs on " + p.unit->label);
  return run(args, p, plan, workspace, executor);
}

Status fused_experts_backward(const FusedExpertsBackwardArgs& args, Executor& executor) {
  Prepared p;
  if (Status s = prepare(args, &p); !s) return s;
  const FusedExpertsBackwardPlan plan = plan_of(args, p, executor.threads());
  static thread_local ScratchBuffer scratch;
  const Workspace workspace = scratch.reserve(plan.workspace_bytes);
  if (!workspace.data && plan.workspace_bytes)
    return Status::out_of_memory("workspace: " + std::to_string(plan.workspace_bytes) +
                                 " bytes could not be allocated");
  return run(args, p, plan, workspace, executor);
}

}  // namespace tileformer
