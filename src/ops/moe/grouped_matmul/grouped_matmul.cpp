// The public entries: check, read counts, choose the unit, plan, run.
#include "tileformer/grouped_matmul.h"

#include <algorithm>
#include <cstring>

#include "ops/moe/grouped_matmul/run.h"
#include "ops/moe/grouped_matmul/units.h"

namespace tileformer {

using namespace moe::grouped;

namespace {

constexpr const char* kReferenceNote = "computed by the reference, in float64 loops";

// What both directions begin with. unit null: the reference computes it.
template <class Args>
Status check_and_choose(const Args& args, DType dtype, Problem* problem, const Unit** unit, Isa* isa) {
  *unit = nullptr;
  if (Status s = check(args, problem); !s) return s;
  if (Status s = active_isa(isa); !s) return s;
  return has_kernel(*problem, dtype) ? units().choose(dtype, unit) : Status::ok();
}

Status check_unit(const char* planned, const Unit& unit) {
  if (std::strcmp(planned, unit.label) == 0) return Status::ok();
  return Status::invalid(std::string("plan: made for the unit ") + (*planned ? planned : "(none)") +
                         ", this call runs on " + unit.label);
}

// Memory that the calling thread keeps.
Status reserve(std::size_t bytes, Workspace* workspace) {
  static thread_local ScratchBuffer scratch;
  *workspace = scratch.reserve(bytes);
  if (workspace->data || !bytes) return Status::ok();
  return Status::out_of_memory("workspace: " + std::to_string(bytes) + " bytes could not be allocated");
}

}  // namespace

Status plan_grouped_matmul(const GroupedMatmulArgs& args, int threads, GroupedMatmulPlan* plan) {
  Problem problem;
  const Unit* unit;
  GroupedMatmulPlan p;
  if (Status s = check_and_choose(args, args.rows.dtype, &problem, &unit, &p.isa); !s) return s;
  if (unit) {
    p = plan_product(args, *unit, p.isa, std::max(threads, 1));
  } else {
    p.unit = "reference";
    p.note = kReferenceNote;
  }
  *plan = p;
  return Status::ok();
}

Status grouped_matmul(const GroupedMatmulArgs& args, const GroupedMatmulPlan& plan, Workspace workspace,
                      Executor& executor) {
  Problem problem;
  const Unit* unit;
  Isa isa;
  if (Status s = check_and_choose(args, args.rows.dtype, &problem, &unit, &isa); !s) return s;
  if (!unit) return grouped_matmul_reference(args);
  if (Status s = check_unit(plan.unit, *unit); !s) return s;
  std::vector<std::int64_t> offsets;
  if (Status s = read_offsets(args.counts, problem, &offsets); !s) return s;
  return run_product(args, *unit, offsets, plan, workspace, executor);
}

Status grouped_matmul(const GroupedMatmulArgs& args, Executor& executor) {
  GroupedMatmulPlan plan;
  if (Status s = plan_grouped_matmul(args, executor.threads(), &plan); !s) return s;
  Workspace workspace;
  if (Status s = reserve(plan.workspace_bytes, &workspace); !s) return s;
  return grouped_matmul(args, plan, workspace, executor);
}

Status plan_grouped_matmul_backward(const GroupedMatmulBackwardArgs& args, int threads,
                                    GroupedMatmulBackwardPlan* plan) {
  Problem problem;
  const Unit* unit;
  GroupedMatmulBackwardPlan p;
  p.grad_rows.threads = 0;
  if (Status s = check_and_choose(args, args.forward.rows.dtype, &problem, &unit, &p.isa); !s) return s;
  if (unit) {
    threads = std::max(threads, 1);
    p = plan_weight_gradient(args, *unit, p.isa, threads);
    p.grad_rows.threads = 0;
    if (args.grad_rows) p.grad_rows = plan_product(product_of_grad_rows(args), *unit, p.isa, threads);
    p.workspace_bytes = std::max(p.workspace_bytes, p.grad_rows.workspace_bytes);
  } else {
    p.unit = "reference";
    p.note = kReferenceNote;
  }
  *plan = p;
  return Status::ok();
}

Status grouped_matmul_backward(const GroupedMatmulBackwardArgs& args, const GroupedMatmulBackwardPlan& plan,
                               Workspace workspace, Executor& executor) {
  Problem problem;
  const Unit* unit;
  Isa isa;
  if (Status s = check_and_choose(args, args.forward.rows.dtype, &problem, &unit, &isa); !s) return s;
  if (!unit) return grouped_matmul_backward_reference(args);
  if (Status s = check_unit(plan.unit, *unit); !s) return s;
  if (args.grad_rows) {
    if (Status s = check_unit(plan.grad_rows.unit, *unit); !s) return s;
  }
  std::vector<std::int64_t> offsets;
  if (Status s = read_offsets(args.forward.counts, problem, &offsets); !s) return s;
  if (args.grad_rows) {
    const GroupedMatmulArgs product = product_of_grad_rows(args);
    if (Status s = run_product(product, *unit, offsets, plan.grad_rows, workspace, executor); !s) return s;
  }
  return run_weight_gradient(args, *unit, offsets, plan, workspace, executor);
}

Status grouped_matmul_backward(const GroupedMatmulBackwardArgs& args, Executor& executor) {
  GroupedMatmulBackwardPlan plan;
  if (Status s = plan_grouped_matmul_backward(args, executor.threads(), &plan); !s) return s;
  Workspace workspace;
  if (Status s = reserve(plan.workspace_bytes, &workspace); !s) return s;
  return grouped_matmul_backward(args, plan, workspace, executor);
}

}  // namespace tileformer
