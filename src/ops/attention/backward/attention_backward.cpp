// The public entry of the backward: check, choose the unit, plan, hand the kernel its arguments.
#include "tileformer/attention_backward.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/run_workers.h"
#include "ops/attention/backward/plan.h"
#include "ops/attention/kernel_inputs.h"

namespace tileformer {

using namespace attention;

namespace {

// Cuts a workspace into aligned pieces.
class Pieces {
 public:
  explicit Pieces(void* data) : at_((reinterpret_cast<std::uintptr_t>(data) + 63) / 64 * 64) {}
  template <class T>
  T* take(std::size_t count) {
    T* piece = reinterpret_cast<T*>(at_);
    at_ += (count * sizeof(T) + 63) / 64 * 64;
    return piece;
  }

 private:
  std::uintptr_t at_;
};

// Every element, whatever the strides. A zero is all zero bits in every dtype.
void fill_zero(const TensorView& view) {
  if (!view) return;
  const std::int64_t size = static_cast<std::int64_t>(size_of(view.dtype));
  for (std::int64_t a = 0; a < view.shape[0]; ++a)
    for (std::int64_t b = 0; b < view.shape[1]; ++b)
      for (std::int64_t c = 0; c < view.shape[2]; ++c)
        for (std::int64_t d = 0; d < view.shape[3]; ++d)
          std::memset(
              static_cast<char*>(view.data) +
                  (a * view.stride[0] + b * view.stride[1] + c * view.stride[2] + d * view.stride[3]) * size,
              0, static_cast<std::size_t>(size));
}

// -sum over rows of exp(sink - lse) D, in order of batch and position.
void store_sink_gradients(const AttentionBackwardArgs& args, const std::vector<float>& sinks,
                          const float* row_term) {
  const TensorView& lse = args.forward.lse;
  for (std::int64_t h = 0; h < lse.shape[1]; ++h) {
    double sum = 0;
    for (std::int64_t b = 0; b < lse.shape[0]; ++b)
      for (std::int64_t i = 0; i < lse.shape[2]; ++i) {
        const float at =
            static_cast<const float*>(lse.data)[b * lse.stride[0] + h * lse.stride[1] + i * lse.stride[2]];
        // A sink of -inf has no weight, not even where lse is -inf too.
        if (sinks[h] == -HUGE_VALF || at == -HUGE_VALF) continue;
        sum -= std::exp(double(sinks[h]) - double(at)) *
               double(row_term[(b * lse.shape[1] + h) * lse.shape[2] + i]);
      }
    static_cast<float*>(args.grad_sinks.data)[h * args.grad_sinks.stride[0]] = static_cast<float>(sum);
  }
}

}  // namespace

Status plan_attention_backward(const AttentionBackwardArgs& args, int threads, AttentionBackwardPlan* plan) {
  Problem problem;
  if (Status s = check(args, &problem); !s) return s;
  Choice choice;
  if (Status s = choose(problem, &choice); !s) return s;
  *plan = backward_layout(args, problem, choice.unit, choice.isa, std::max(threads, 1)).plan;
  if (*choice.note) plan->note = choice.note;
  return Status::ok();
}

Status attention_backward(const AttentionBackwardArgs& args, const AttentionBackwardPlan& plan,
                          Workspace workspace, Executor& executor) {
  Problem problem;
  if (Status s = check(args, &problem); !s) return s;
  Choice choice;
  if (Status s = choose(problem, &choice); !s) return s;
  if (!choice.unit) return attention_backward_reference(args);
  if (std::strcmp(plan.unit, choice.unit->label) != 0)
    return Status::invalid(std::string("plan: made for the unit ") + (*plan.unit ? plan.unit : "(none)") +
                           ", this call runs on " + choice.unit->label);
  BackwardLayout layout =
      backward_layout(args, problem, choice.unit, choice.isa, std::min(plan.threads, executor.threads()));
  if (!workspace.data || workspace.bytes < layout.plan.workspace_bytes)
    return Status::invalid("workspace: given " + std::to_string(workspace.data ? workspace.bytes : 0) +
                           " bytes, needed " + std::to_string(layout.plan.workspace_bytes) +
                           " for this plan and these arguments");

  BackwardKernelArgs& k = layout.kernel;
  Pieces pieces(workspace.data);
  k.forward.scratch = pieces.take<char>(k.forward.scratch_bytes * std::size_t(layout.plan.threads));
  k.slots = pieces.take<float>(std::size_t(layout.plan.slots * k.slot_floats));
  float* row_term = pieces.take<float>(layout.row_term_floats);
  k.progress = pieces.take<std::int64_t>(layout.tasks.size());
  std::fill_n(k.progress, layout.tasks.size(), 0);
  if (args.grad_sinks) {
    const TensorView& lse = args.forward.lse;
    std::fill_n(row_term, layout.row_term_floats, 0.0f);  // rows of no sequence
    k.row_term = operand(TensorView::dense(row_term, DType::f32, {lse.shape[0], lse.shape[1], lse.shape[2]}));
  }
  fill_zero(args.grad_mask);
  if (problem.heads == 0) {  // and no task, though there may be keys
    fill_zero(args.grad_key);
    fill_zero(args.grad_value);
  }
  const std::vector<KernelSequence> sequences = kernel_sequences(args.forward, problem);
  const std::vector<float> sinks = sinks_of(args.forward, problem);
  if (args.forward.sinks) k.forward.sinks = sinks.data();
  std::int64_t next_item = 0;
  k.forward.sequences = sequences.data();
  k.forward.next_item = &next_item;
  k.tasks = layout.tasks.data();
  k.tasks_count = layout.plan.tasks;

  const BackwardKernel& kernel = backward_kernel_of(*choice.unit);
  run_workers(executor, layout.plan.threads, [&](int worker) { kernel.run(k, worker); });
  if (args.grad_sinks) store_sink_gradients(args, sinks, row_term);
  return Status::ok();
}

Status attention_backward(const AttentionBackwardArgs& args, Executor& executor) {
  AttentionBackwardPlan plan;
  if (Status s = plan_attention_backward(args, executor.threads(), &plan); !s) return s;
  static thread_local ScratchBuffer scratch;
  const Workspace workspace = scratch.reserve(plan.workspace_bytes);
  if (!workspace.data && plan.workspace_bytes)
    return Status::out_of_memory("workspace: " + std::to_string(plan.workspace_bytes) +
                                 " bytes could not be allocated");
  return attention_backward(args, plan, workspace, executor);
}

}  // namespace tileformer
