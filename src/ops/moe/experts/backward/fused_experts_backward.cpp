// The public entry of the backward: check, plan, run.
#include "tileformer/fused_experts_backward.h"

#include <sstream>

#include "ops/moe/experts/check.h"

namespace tileformer {

using namespace moe;

std::string FusedExpertsBackwardPlan::to_string() const {
  std::ostringstream text;
  text << "isa " << name_of(isa) << ", unit " << unit << ", " << threads << " threads, workspace "
       << workspace_bytes << " bytes";
  if (!note.empty()) text << "; " << note;
  return text.str();
}

Status plan_fused_experts_backward(const FusedExpertsBackwardArgs& args, int,
                                   FusedExpertsBackwardPlan* plan) {
  Problem problem;
  if (Status s = check(args, &problem); !s) return s;
  FusedExpertsBackwardPlan p;
  if (Status s = active_isa(&p.isa); !s) return s;
  p.unit = "reference";
  p.note = "computed by the reference, in float64 loops";
  *plan = p;
  return Status::ok();
}

Status fused_experts_backward(const FusedExpertsBackwardArgs& args, const FusedExpertsBackwardPlan&,
                              Workspace, Executor&) {
  return fused_experts_backward_reference(args);
}

Status fused_experts_backward(const FusedExpertsBackwardArgs& args, Executor&) {
  return fused_experts_backward_reference(args);
}

}  // namespace tileformer
