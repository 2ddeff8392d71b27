// torch.ops.tileformer.fused_experts_*: mixture of experts from routing to combined output.
//
// fused_experts_forward    -> (out, gate_up): with `store` what the backward reads again, else empty. Carries
//                             an autograd formula, registered from Python.
// fused_experts_inference  -> out. Has none: it costs some 5 us per call even where no gradient is wanted.
// fused_experts_backward   -> the gradients of hidden, gate_up, down, weights and the two biases; those that
//                             `wanted` (bits in this order) does not ask for are empty. The weights' lie in
//                             memory as the weights do.
// fused_experts_explain, fused_experts_backward_explain -> the plan and the slower paths taken, as
//                             explanation.h says; compute nothing.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>

#include <array>
#include <stdexcept>
#include <string>

#include "experts_call.h"
#include "explanation.h"
#include "optional_view.h"
#include "status_error.h"
#include "tileformer/fused_experts_backward.h"
#include "torch_executor.h"

namespace tileformer::torch_binding {
namespace {

using torch::stable::detail::from;
using torch::stable::detail::to;

void forward_op(StableIValue* stack, std::uint64_t, std::uint64_t) {
  ExpertsCall call(stack);
  const bool store = to<bool>(stack[ExpertsCall::kArguments]);
  call.bind();
  const Tensor out = call.allocate_out();
  const Tensor gate_up = store ? call.allocate_gate_up() : empty_dense({0, 0}, call.args.hidden.dtype);
  TorchExecutor executor;
  raise_if_failed(fused_experts(call.args, executor));
  stack[0] = from(out);
  stack[1] = from(gate_up);
}

void inference_op(StableIValue* stack, std::uint64_t, std::uint64_t) {
  ExpertsCall call(stack);
  call.bind();
  const Tensor out = call.allocate_out();
  TorchExecutor executor;
  raise_if_failed(fused_experts(call.args, executor));
  stack[0] = from(out);
}

void explain_op(StableIValue* stack, std::uint64_t, std::uint64_t) {
  ExpertsCall call(stack);
  const std::string copied = call.copied();
  call.bind();
  const Tensor out = call.allocate_out();
  FusedExpertsPlan plan;
  raise_if_failed(plan_fused_experts(call.args, TorchExecutor().threads(), &plan));
  stack[0] = from(explanation(plan.to_string(), copied));
}

#define TILEFORMER_EXPERTS_BACKWARD_ARGUMENTS \
  "Tensor grad_out, Tensor? stored, int wanted, " TILEFORMER_EXPERTS_ARGUMENTS

// The arguments of the backward on the stack: those of its own, then those of the forward.
struct BackwardCall {
  static constexpr int kGradients = 6;

  Tensor grad_out;
  std::optional<Tensor> stored;
  std::int64_t wanted;
  ExpertsCall call;
  FusedExpertsBackwardArgs args;
  std::array<std::optional<Tensor>, kGradients> gradients;

  explicit BackwardCall(StableIValue* stack)
      : grad_out(to<Tensor>(stack[0])),
        stored(to<std::optional<Tensor>>(stack[1])),
        wanted(to<std::int64_t>(stack[2])),
        call(stack + 3) {}

  bool copies_grad_out() const {
    return grad_out.dim() == 2 && !has_unit_last_stride(grad_out) && grad_out.strides()[1] != 0;
  }

  void bind() {
    call.bind();
    if (copies_grad_out()) grad_out = torch::stable::contiguous(grad_out);
    args.forward = call.args;
    args.forward.gate_up_out = optional_view(stored, "stored");
    args.grad_out = view_of(grad_out, "grad_out");
    TensorView* const views[kGradients] = {&args.grad_hidden,  &args.grad_gate_up,      &args.grad_down,
                                           &args.grad_weights, &args.grad_gate_up_bias, &args.grad_down_bias};
    for (int i = 0; i < kGradients; ++i) {
      gradients[i] = wants(i) ? allocate(i) : empty_dense({0}, args.forward.hidden.dtype);
      if (wants(i)) *views[i] = view_of(*gradients[i], "gradient");
    }
  }

 private:
  bool wants(int i) const {
    if (i == 4 && !given(call.gate_up_bias)) return false;
    if (i == 5 && !given(call.down_bias)) return false;
    return (wanted >> i & 1) != 0;
  }
  Tensor allocate(int i) const {
    const FusedExpertsArgs& f = call.args;
    if (i == 1) return empty_like_weight(call.gate_up);
    if (i == 2) return empty_like_weight(call.down);
    const TensorView& like = i == 0 ? f.hidden : i == 3 ? f.weights : i == 4 ? f.gate_up.bias : f.down.bias;
    return empty_dense({like.shape[0], like.shape[1]}, like.dtype);
  }
};

void backward_op(StableIValue* stack, std::uint64_t, std::uint64_t) {
  BackwardCall backward(stack);
  backward.bind();
  TorchExecutor executor;
  raise_if_failed(fused_experts_backward(backward.args, executor));
  for (int i = 0; i < BackwardCall::kGradients; ++i) stack[i] = from(*backward.gradients[i]);
}

void backward_explain_op(StableIValue* stack, std::uint64_t, std::uint64_t) {
  BackwardCall backward(stack);
  std::string copied = backward.call.copied();
  if (backward.copies_grad_out()) copied += (copied.empty() ? "" : ", ") + std::string("grad_out");
  backward.bind();
  FusedExpertsBackwardPlan plan;
  raise_if_failed(plan_fused_experts_backward(backward.args, TorchExecutor().threads(), &plan));
  stack[0] = from(explanation(plan.to_string(), copied));
}

// Every device and layout but a dense CPU tensor ends here.
[[noreturn]] void refuse() {
  throw std::invalid_argument(
      "all tensors of fused_experts have to be dense and on the CPU: tileformer runs on CPUs only");
}
void refuse_device(StableIValue* stack, std::uint64_t, std::uint64_t) {
  const ExpertsCall call(stack);
  refuse();
}
void refuse_device_backward(StableIValue* stack, std::uint64_t, std::uint64_t) {
  const BackwardCall call(stack);
  refuse();
}

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(tileformer, m) {
  m.def("fused_experts_forward(" TILEFORMER_EXPERTS_ARGUMENTS
        ", bool store=True) -> (Tensor out, Tensor gate_up)");
  m.def("fused_experts_inference(" TILEFORMER_EXPERTS_ARGUMENTS ") -> Tensor");
  m.def("fused_experts_explain(" TILEFORMER_EXPERTS_ARGUMENTS ") -> Tensor");
  m.def("fused_experts_backward(" TILEFORMER_EXPERTS_BACKWARD_ARGUMENTS
        ") -> (Tensor grad_hidden, Tensor grad_gate_up, Tensor grad_down, Tensor grad_weights, "
        "Tensor grad_gate_up_bias, Tensor grad_down_bias)");
  m.def("fused_experts_backward_explain(" TILEFORMER_EXPERTS_BACKWARD_ARGUMENTS ") -> Tensor");
}

STABLE_TORCH_LIBRARY_IMPL(tileformer, CPU, m) {
  m.impl("fused_experts_forward", forward_op);
  m.impl("fused_experts_inference", inference_op);
  m.impl("fused_experts_explain", explain_op);
  m.impl("fused_experts_backward", backward_op);
  m.impl("fused_experts_backward_explain", backward_explain_op);
}

STABLE_TORCH_LIBRARY_IMPL(tileformer, CompositeExplicitAutograd, m) {
  m.impl("fused_experts_forward", refuse_device);
  m.impl("fused_experts_inference", refuse_device);
  m.impl("fused_experts_explain", refuse_device);
  m.impl("fused_experts_backward", refuse_device_backward);
  m.impl("fused_experts_backward_explain", refuse_device_backward);
}

}  // namespace tileformer::torch_binding
