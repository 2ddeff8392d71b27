// The public entry: check, plan, run.
#include "tileformer/fused_experts.h"

#include "ops/moe/experts/check.h"

namespace tileformer {

using namespace moe;

Status plan_fused_experts(const FusedExpertsArgs& args, int, FusedExpertsPlan* plan) {
  Problem problem;
  if (Status s = check(args, &problem); !s) return s;
  FusedExpertsPlan p;
  if (Status s = active_isa(&p.isa); !s) return s;
  p.unit = "reference";
  p.note = "computed by the reference, in float64 loops";
  *plan = p;
  return Status::ok();
}

Status fused_experts(const FusedExpertsArgs& args, const FusedExpertsPlan&, Workspace, Executor&) {
  return fused_experts_reference(args);
}

Status fused_experts(const FusedExpertsArgs& args, Executor&) { return fused_experts_reference(args); }

}  // namespace tileformer
