// torch.ops.tileformer.attention_*: the operators of attention.
//
// attention_forward    -> (out, lse). Carries an autograd formula, registered from Python.
// attention_inference  -> out. Has none: it costs some 5 us per call even where no gradient is wanted.
// attention_backward   -> the gradients of query, key, value, attn_mask and sinks; those that `wanted` (1 | 2
// | 4 | 8 |
//                         16 in this order) does not ask for are empty. Those of attn_mask and sinks are
//                         fp32.
// attention_explain    -> the plan and the slower paths taken, as explanation.h says; computes nothing.
#include <torch/csrc/stable/library.h>

#include <stdexcept>
#include <string>

#include "attention_backward_call.h"
#include "attention_call.h"
#include "explanation.h"
#include "status_error.h"
#include "torch_executor.h"

namespace tileformer::torch_binding {
namespace {

using torch::stable::detail::from;
using torch::stable::detail::to;

void attention_forward_op(StableIValue* stack, std::uint64_t, std::uint64_t) {
  AttentionCall call(stack);
  call.bind();
  const Tensor out = call.allocate_out(), lse = call.allocate_lse();
  call.run();
  stack[0] = from(out);
  stack[1] = from(lse);
}

void attention_inference_op(StableIValue* stack, std::uint64_t, std::uint64_t) {
  AttentionCall call(stack);
  call.bind();
  const Tensor out = call.allocate_out();
  call.run();
  stack[0] = from(out);
}

#define TILEFORMER_BACKWARD_ARGUMENTS \
  "Tensor grad_out, Tensor? grad_lse, Tensor out, Tensor lse, int wanted, " TILEFORMER_ATTENTION_ARGUMENTS

// The arguments of attention_backward on the stack: those of its own, then those of attention.
struct BackwardStack {
  Tensor grad_out;
  std::optional<Tensor> grad_lse;
  Tensor out, lse;
  std::int64_t wanted;
  AttentionCall call;

  explicit BackwardStack(StableIValue* stack)
      : grad_out(to<Tensor>(stack[0])),
        grad_lse(to<std::optional<Tensor>>(stack[1])),
        out(to<Tensor>(stack[2])),
        lse(to<Tensor>(stack[3])),
        wanted(to<std::int64_t>(stack[4])),
        call(stack + 5) {}

  AttentionBackwardCall bind() {
    call.bind();
    call.set_results(out, lse);
    return {call, grad_out, grad_lse, wanted};
  }
};

void attention_backward_op(StableIValue* stack, std::uint64_t, std::uint64_t) {
  BackwardStack arguments(stack);
  AttentionBackwardCall backward = arguments.bind();
  backward.run();
  for (int i = 0; i < AttentionBackwardCall::kGradients; ++i) stack[i] = from(backward.gradient(i));
}

void attention_explain_op(StableIValue* stack, std::uint64_t, std::uint64_t) {
  AttentionCall call(stack);
  const std::string copied = call.copied();
  call.bind();
  const Tensor out = call.allocate_out();
  AttentionPlan plan;
  raise_if_failed(plan_attention(call.args, TorchExecutor().threads(), &plan));
  stack[0] = from(explanation(plan.to_string(), copied));
}

void attention_backward_explain_op(StableIValue* stack, std::uint64_t, std::uint64_t) {
  BackwardStack arguments(stack);
  std::string copied = arguments.call.copied();
  if (!has_unit_last_stride(arguments.grad_out))
    copied += (copied.empty() ? "" : ", ") + std::string("grad_out");
  AttentionBackwardPlan plan;
  raise_if_failed(arguments.bind().plan(&plan));
  stack[0] = from(explanation(plan.to_string(), copied));
}

// Every device and layout but a dense CPU tensor ends here.
[[noreturn]] void refuse() {
  throw std::invalid_argument(
      "query, key and value have to be dense tensors on the CPU: tileformer runs on CPUs only");
}
void refuse_device(StableIValue* stack, std::uint64_t, std::uint64_t) {
  const AttentionCall call(stack);
  refuse();
}
void refuse_device_backward(StableIValue* stack, std::uint64_t, std::uint64_t) {
  const BackwardStack arguments(stack);
  refuse();
}

}  // namespace

STABLE_TORCH_LIBRARY(tileformer, m) {
  m.def("attention_forward(" TILEFORMER_ATTENTION_ARGUMENTS ") -> (Tensor out, Tensor lse)");
  m.def("attention_inference(" TILEFORMER_ATTENTION_ARGUMENTS ") -> Tensor");
  m.def("attention_backward(" TILEFORMER_BACKWARD_ARGUMENTS
        ") -> (Tensor grad_query, Tensor grad_key, Tensor grad_value, Tensor grad_mask, Tensor grad_sinks)");
  m.def("attention_backward_explain(" TILEFORMER_BACKWARD_ARGUMENTS ") -> Tensor");
  m.def("attention_explain(" TILEFORMER_ATTENTION_ARGUMENTS ") -> Tensor");
}

STABLE_TORCH_LIBRARY_IMPL(tileformer, CPU, m) {
  m.impl("attention_forward", attention_forward_op);
  m.impl("attention_inference", attention_inference_op);
  m.impl("attention_backward", attention_backward_op);
  m.impl("attention_backward_explain", attention_backward_explain_op);
  m.impl("attention_explain", attention_explain_op);
}

STABLE_TORCH_LIBRARY_IMPL(tileformer, CompositeExplicitAutograd, m) {
  m.impl("attention_forward", refuse_device);
  m.impl("attention_inference", refuse_device);
  m.impl("attention_explain", refuse_device);
  m.impl("attention_backward", refuse_device_backward);
  m.impl("attention_backward_explain", refuse_device_backward);
}

}  // namespace tileformer::torch_binding
