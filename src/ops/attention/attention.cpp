// The public entry: check, choose the unit, plan, hand the kernel its arguments.
#include "tileformer/attention.h"

#include <algorithm>
#include <cstring>

#include "base/run_workers.h"
#include "ops/attention/kernel_inputs.h"
#include "ops/attention/plan.h"

namespace tileformer {

using namespace attention;

namespace {

// What follows from the arguments alone.
struct Prepared {
  Problem problem;
  Choice choice;
  AttentionPlan plan;
  DecodeWork decode;
};

Status check_and_choose(const AttentionArgs& args, Prepared* p) {
  if (Status s = check(args, &p->problem); !s) return s;
  return choose(p->problem, &p->choice);
}

Status prepare(const AttentionArgs& args, int threads, Prepared* p) {
  if (Status s = check_and_choose(args, p); !s) return s;
  threads = std::max(threads, 1);
  if (p->choice.unit) p->decode = decode_work(args, p->problem, threads);
  p->plan =
      attention::plan(args, p->problem, p->decode, p->choice.unit, p->choice.isa, cpu_topology(), threads);
  if (*p->choice.note) p->plan.note = p->choice.note;
  return Status::ok();
}

Status run(const AttentionArgs& args, const Prepared& p, Workspace workspace, Executor& executor) {
  const AttentionPlan& plan = p.plan;
  if (!p.choice.unit) return attention_reference(args);
  if (plan.tasks == 0 && plan.decode_items == 0) return Status::ok();

  KernelArgs k = kernel_args(args, p.problem, plan.key_block, plan.query_block / plan.query_lanes);
  const std::vector<KernelSequence> sequences = kernel_sequences(args, p.problem);
  const std::vector<Task> tasks = work_list(args, p.problem, plan.query_lanes, k.max_groups);
  const std::vector<float> sinks = sinks_of(args, p.problem);
  if (args.sinks) k.sinks = sinks.data();
  std::int64_t next_item = 0, next_decode = 0;
  k.sequences = sequences.data();
  k.tasks = tasks.data();
  k.tasks_count = static_cast<std::int64_t>(tasks.size());
  k.next_item = &next_item;
  k.decode_items = p.decode.items.data();
  k.decode_count = static_cast<std::int64_t>(p.decode.items.size());
  k.next_decode = &next_decode;
  const WorkerMemory memory = worker_memory(*p.choice.unit, !tasks.empty(), p.decode, &k);
  const int workers = std::min(plan.threads, executor.threads());
  const std::size_t needed = memory.shared + memory.each * std::size_t(workers) + 64;
  if (!workspace.data || workspace.bytes < needed)
    return Status::invalid("workspace: given " + std::to_string(workspace.data ? workspace.bytes : 0) +
                           " bytes, needed " + std::to_string(needed) + " for this plan and these arguments");
  char* base = reinterpret_cast<char*>((reinterpret_cast<std::uintptr_t>(workspace.data) + 63) / 64 * 64);
  k.partials = reinterpret_cast<float*>(base);
  k.partials_done = reinterpret_cast<std::int64_t*>(base + memory.partials);
  std::fill_n(k.partials_done, p.decode.counters, 0);
  k.scratch = base + memory.shared;
  k.scratch_bytes = memory.each;

  const Unit& tiles = *p.choice.unit;
  const DecodeKernel& rows = decode_kernel_of(tiles);
  run_workers(executor, workers, [&](int worker) {
    if (k.tasks_count) tiles.run(k, worker);
    if (k.decode_count) rows.run(k, worker);
  });
  return Status::ok();
}

}  // namespace

Status plan_attention(const AttentionArgs& args, int threads, AttentionPlan* plan) {
  Prepared p;
  if (Status s = prepare(args, threads, &p); !s) return s;
  *plan = p.plan;
  return Status::ok();
}

Status attention_forward(const AttentionArgs& args, const AttentionPlan& plan, Workspace workspace,
                         Executor& executor) {
  Prepared p;
  if (Status s = check_and_choose(args, &p); !s) return s;
  p.plan = plan;
  if (p.choice.unit) {
    if (std::strcmp(plan.unit, p.choice.unit->label) != 0)
      return Status::invalid(std::string("plan: made for the unit ") + (*plan.unit ? plan.unit : "(none)") +
                             ", this call runs on " + p.choice.unit->label);
    p.decode = decode_work(args, p.problem, plan.threads_asked);
  }
  return run(args, p, workspace, executor);
}

Status attention_forward(const AttentionArgs& args, Executor& executor) {
  Prepared p;
  if (Status s = prepare(args, executor.threads(), &p); !s) return s;
  static thread_local ScratchBuffer scratch;
  const Workspace workspace = scratch.reserve(p.plan.workspace_bytes);
  if (!workspace.data && p.plan.workspace_bytes)
    return Status::out_of_memory("workspace: " + std::to_string(p.plan.workspace_bytes) +
                                 " bytes could not be allocated");
  return run(args, p, workspace, executor);
}

}  // namespace tileformer
