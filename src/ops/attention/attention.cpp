// The public entry: check, choose the unit, plan, hand the kernel its arguments.
#include "tileformer/attention.h"

#include <algorithm>
#include <cstring>

#include "base/element.h"
#include "ops/attention/plan.h"
#include "ops/attention/problem.h"
#include "tileformer/philox.h"

namespace tileformer {
namespace attention {
namespace {

Operand operand(const TensorView& view) {
  Operand o{};
  if (!view) return o;
  o.data = view.data;
  o.dtype = view.dtype;
  o.element_size = static_cast<int>(size_of(view.dtype));
  std::int64_t* strides[4] = {&o.batch, &o.head, &o.row, &o.column};
  for (int i = 0; i < view.rank; ++i) *strides[i] = view.shape[i] == 1 ? 0 : view.stride[i];
  return o;
}

// As in key_range(): kernels add positions to it, and beyond this it excludes nothing.
std::int64_t window(std::int64_t w) { return std::min(w, std::int64_t{1} << 40); }

struct Choice {
  const Unit* unit;  // null: the reference
  Isa isa;
  const char* note;
};

Status choose(const AttentionArgs& args, const Problem& problem, Choice* choice) {
  *choice = {nullptr, Isa::portable, ""};
  if (Status s = active_isa(&choice->isa); !s) return s;
  if (problem.dtype == DType::f64) return Status::ok();
  choice->unit = forced_unit() ? forced_unit() : find_unit(choice->isa, problem.dtype);
  if (choice->unit && choice->unit->bf16_only && (problem.dtype != DType::bf16 || !(problem.scale > 0))) {
    // Running maxima are kept of raw scores there, which only a positive scale leaves in order.
    if (problem.dtype == DType::bf16) choice->note = "scale <= 0 runs on the fp32 unit";
    const Isa isa = choice->isa;
    choice->unit = forced_unit() ? find_unit("portable_fma") : find_unit(isa, DType::f32);
  }
  if (!choice->unit)
    return Status::unsupported(std::string("no attention kernel for ISA ") + name_of(choice->isa));
  (void)args;
  return Status::ok();
}

struct Job {
  const Unit* unit;
  const KernelArgs* args;
};

}  // namespace

KernelArgs kernel_args(const AttentionArgs& args, const Problem& problem, const AttentionPlan& plan) {
  KernelArgs k{};
  k.query = operand(args.query);
  k.key = operand(args.key);
  k.value = operand(args.value);
  k.out = operand(args.out);
  k.lse = operand(args.lse);
  k.mask = operand(args.attn_mask);
  if (args.alibi_slopes) {
    const TensorView& v = args.alibi_slopes;
    k.slopes.data = v.data;
    k.slopes.dtype = v.dtype;
    k.slopes.head = v.stride[v.rank - 1];
    k.slopes.batch = v.rank == 2 ? v.stride[0] : 0;
  }
  k.kv_heads = problem.kv_heads;
  k.group = problem.group;
  k.dim = problem.dim;
  k.dim_v = problem.dim_v;
  k.key_block = plan.key_block;
  k.max_groups = plan.query_block / plan.query_lanes;
  k.causal = args.causal != Causal::none;
  k.window_left = window(args.window_left);
  k.window_right = window(args.window_right);
  k.scale = problem.scale;
  k.softcap = static_cast<float>(args.softcap);
  k.dropout_scale = 1;
  if (args.dropout_p > 0) {
    k.dropout_scale = args.dropout_p < 1 ? 1 / (1 - args.dropout_p) : 0;
    k.dropout_threshold = dropout_threshold(args.dropout_p);
    k.dropout_key[0] = static_cast<std::uint32_t>(args.dropout_seed);
    k.dropout_key[1] = static_cast<std::uint32_t>((args.dropout_seed >> 32) ^ (args.dropout_offset >> 32));
    k.dropout_counter = static_cast<std::uint32_t>(args.dropout_offset);
  }
  return k;
}

}  // namespace attention

using namespace attention;

Status plan_attention(const AttentionArgs& args, int threads, AttentionPlan* plan) {
  Problem problem;
  if (Status s = check(args, &problem); !s) return s;
  Choice choice;
  if (Status s = choose(args, problem, &choice); !s) return s;
  *plan = attention::plan(args, problem, choice.unit, choice.isa, cpu_topology(), std::max(threads, 1));
  if (*choice.note) plan->note = choice.note;
  return Status::ok();
}

Status attention_forward(const AttentionArgs& args, const AttentionPlan& plan, Workspace workspace,
                         Executor& executor) {
  Problem problem;
  if (Status s = check(args, &problem); !s) return s;
  Choice choice;
  if (Status s = choose(args, problem, &choice); !s) return s;
  if (!choice.unit) return attention_reference(args);
  if (std::strcmp(plan.unit, choice.unit->label) != 0)
    return Status::invalid(std::string("plan: made for the unit ") + (*plan.unit ? plan.unit : "(none)") +
                           ", this call runs on " + choice.unit->label);
  if (plan.tasks == 0) return Status::ok();

  KernelArgs k = kernel_args(args, problem, plan);
  std::vector<KernelSequence> sequences;
  for (std::int64_t n = 0; n < problem.sequences; ++n) {
    const Sequence s = sequence(args, problem, n);
    sequences.push_back(
        {s.batch, s.first_query, s.queries, s.first_key, s.keys, s.range_begin, s.range_end, s.diagonal});
  }
  const std::vector<Task> tasks = work_list(args, problem, plan.query_lanes, k.max_groups);
  std::vector<float> sinks;
  if (args.sinks) {
    for (std::int64_t h = 0; h < problem.heads; ++h)
      sinks.push_back(
          static_cast<float>(load_element(args.sinks.data, args.sinks.dtype, h * args.sinks.stride[0])));
    k.sinks = sinks.data();
  }
  std::int64_t next_item = 0;
  k.sequences = sequences.data();
  k.tasks = tasks.data();
  k.tasks_count = static_cast<std::int64_t>(tasks.size());
  k.next_item = &next_item;
  k.scratch = reinterpret_cast<char*>((reinterpret_cast<std::uintptr_t>(workspace.data) + 63) / 64 * 64);
  k.scratch_bytes = choice.unit->scratch_bytes(k);
  const int workers = std::min(plan.threads, executor.threads());
  const std::size_t needed = k.scratch_bytes * std::size_t(workers) + 64;
  if (!workspace.data || workspace.bytes < needed)
    return Status::invalid("workspace: given " + std::to_string(workspace.data ? workspace.bytes : 0) +
                           " bytes, needed " + std::to_string(needed) + " for this plan and these arguments");

  Job job{choice.unit, &k};
  auto body = [](void* context, int worker) {
    const Job& j = *static_cast<const Job*>(context);
    j.unit->run(*j.args, worker);
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
