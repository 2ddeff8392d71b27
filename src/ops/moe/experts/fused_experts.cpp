// The public entry: check, choose the unit, plan, sort the pairs by expert, run.
#include "tileformer/fused_experts.h"

#include <cstring>
#include <string>

#include "ops/moe/experts/check.h"
#include "ops/moe/experts/pairs.h"
#include "ops/moe/experts/run.h"
#include "ops/moe/experts/units.h"

namespace tileformer {

using namespace moe;

namespace {

// Why the reference loops run; empty: they do not.
const char* reference_reason(const FusedExpertsArgs& args) {
  if (args.hidden.dtype == DType::f64) return "float64 runs the reference loops, one thread";
  return "";
}

struct Prepared {
  Problem problem;
  Isa isa = Isa::portable;
  const Unit* unit = nullptr;  // null: the reference
};

Status prepare(const FusedExpertsArgs& args, Prepared* p) {
  if (Status s = check(args, &p->problem); !s) return s;
  if (Status s = active_isa(&p->isa); !s) return s;
  if (*reference_reason(args)) return Status::ok();
  return units().choose(args.hidden.dtype, &p->unit);
}

FusedExpertsPlan plan_of(const FusedExpertsArgs& args, const Prepared& p, int threads) {
  if (p.unit) return plan(args, p.problem, *p.unit, p.isa, threads);
  FusedExpertsPlan plan;
  plan.isa = p.isa;
  plan.unit = "reference";
  plan.note = reference_reason(args);
  return plan;
}

Status run(const FusedExpertsArgs& args, const Prepared& p, const FusedExpertsPlan& plan, Workspace workspace,
           Executor& executor) {
  if (!p.unit) return fused_experts_reference(args);
  SortedPairs pairs;
  if (Status s = pairs.sort(args, p.problem); !s) return s;
  return run_forward(args, p.problem, *p.unit, pairs.lists(), plan, workspace, executor);
}

}  // namespace

Status plan_fused_experts(const FusedExpertsArgs& args, int threads, FusedExpertsPlan* plan) {
  Prepared p;
  if (Status s = prepare(args, &p); !s) return s;
  *plan = plan_of(args, p, threads);
  return Status::ok();
}

Status fused_experts(const FusedExpertsArgs& args, const FusedExpertsPlan& plan, Workspace workspace,
                     Executor& executor) {
  Prepared p;
  if (Status s = prepare(args, &p); !s) return s;
  if (p.unit && std::strcmp(plan.unit, p.unit->label) != 0)
    return Status::invalid(std::string("plan: made for the unit ") + (*plan.unit ? plan.unit : "(none)") +
                           ", this call runs on " + p.unit->label);
  return run(args, p, plan, workspace, executor);
}

Status fused_experts(const FusedExpertsArgs& args, Executor& executor) {
  Prepared p;
  if (Status s = prepare(args, &p); !s) return s;
  const FusedExpertsPlan plan = plan_of(args, p, executor.threads());
  static thread_local ScratchBuffer scratch;
  const Workspace workspace = scratch.reserve(plan.workspace_bytes);
  if (!workspace.data && plan.workspace_bytes)
    return Status::out_of_memory("workspace: " + std::to_string(plan.workspace_bytes) +
                                 " bytes could not be allocated");
  return run(args, p, plan, workspace, executor);
}

}  // namespace tileformer
