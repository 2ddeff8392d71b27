// The public entry: check, choose the unit, plan, hand the kernel its arguments.
#include "tileformer/attention.h"

#include <algorithm>
#include <cstring>

#include "ops/attention/kernel_inputs.h"
#include "ops/attention/plan.h"

namespace tileformer {

using namespace attention;

namespace {

struct Job {
  const Unit* tiles;
  const DecodeKernel* rows;
  const KernelArgs* args;
};

}  // namespace

Status plan_attention(const AttentionArgs& args, int threads, AttentionPlan* plan) {
  Problem problem;
  if (Status s = check(args, &problem); !s) return s;
  Choice choice;
  if (Status s = choose(problem, &choice); !s) return s;
  *plan = attention::plan(args, problem, choice.unit, choice.isa, cpu_topology(), std::max(threads, 1));
  if (*choice.note) plan->note = choice.note;
  return Status::ok();
}

Status attention_forward(const AttentionArgs& args, const AttentionPlan& plan, Workspace workspace,
                         Executor& executor) {
  Problem problem;
  if (Status s = check(args, &problem); !s) return s;
  Choice choice;
  if (Status s = choose(problem, &choice); !s) return s;
  if (!choice.unit) return attention_reference(args);
  if (std::strcmp(plan.unit, choice.unit->label) != 0)
    return Status::invalid(std::string("plan: made for the unit ") + (*plan.unit ? plan.unit : "(none)") +
                           ", this call runs on " + choice.unit->label);
  if (plan.tasks == 0 && plan.decode_items == 0) return Status::ok();

  KernelArgs k = kernel_args(args, problem, plan.key_block, plan.query_block / plan.query_lanes);
  const std::vector<KernelSequence> sequences = kernel_sequences(args, problem);
  const std::vector<Task> tasks = work_list(args, problem, plan.query_lanes, k.max_groups);
  const std::vector<float> sinks = sinks_of(args, problem);
  if (args.sinks) k.sinks = sinks.data();
  const DecodeWork decode = decode_work(args, problem, plan.threads_asked);
  std::int64_t next_item = 0, next_decode = 0;
  k.sequences = sequences.data();
  k.tasks = tasks.data();
  k.tasks_count = static_cast<std::int64_t>(tasks.size());
  k.next_item = &next_item;
  k.decode_items = decode.items.data();
  k.decode_count = static_cast<std::int64_t>(decode.items.size());
  k.next_decode = &next_decode;
  const WorkerMemory memory = worker_memory(*choice.unit, !tasks.empty(), decode, &k);
  const int workers = std::min(plan.threads, executor.threads());
  const std::size_t needed = memory.shared + memory.each * std::size_t(workers) + 64;
  if (!workspace.data || workspace.bytes < needed)
    return Status::invalid("workspace: given " + std::to_string(workspace.data ? workspace.bytes : 0) +
                           " bytes, needed " + std::to_string(needed) + " for this plan and these arguments");
  char* base = reinterpret_cast<char*>((reinterpret_cast<std::uintptr_t>(workspace.data) + 63) / 64 * 64);
  k.partials = reinterpret_cast<float*>(base);
  k.partials_done = reinterpret_cast<std::int64_t*>(base + memory.partials);
  std::fill_n(k.partials_done, decode.counters, 0);
  k.scratch = base + memory.shared;
  k.scratch_bytes = memory.each;

  Job job{choice.unit, &decode_kernel_of(*choice.unit), &k};
  auto body = [](void* context, int worker) {
    const Job& j = *static_cast<const Job*>(context);
    if (j.args->tasks_count) j.tiles->run(*j.args, worker);
    if (j.args->decode_count) j.rows->run(*j.args, worker);
  };
  if (workers <= 1)
    body(&job, 0);
  else
    executor.run(workers, body, &job);
  return Status::ok();
}

Status attention_forward(const AttentionArgs& args, Executor& executor) {
  AttentionPlan plan;
  if (Status s = plan_attention(args, executor.threads(), &plan); !s) return s;
  static thread_local ScratchBuffer scratch;
  const Workspace workspace = scratch.reserve(plan.workspace_bytes);
  if (!workspace.data && plan.workspace_bytes)
    return Status::out_of_memory("workspace: " + std::to_string(plan.workspace_bytes) +
                                 " bytes could not be allocated");
  return attention_forward(args, plan, workspace, executor);
}

}  // namespace tileformer
