#include "attention_backward_call.h"

#include <torch/csrc/stable/ops.h>

#include <stdexcept>
#include <string>

#include "status_error.h"
#include "torch_executor.h"

namespace tileformer::torch_binding {
namespace {

// fp32 in the shape of a mask or of sinks, whatever the strides of those are.
Tensor statistics_like(const TensorView& view, DType dtype) {
  if (view.rank == 1) return empty_dense({view.shape[0]}, dtype);
  return empty_dense({view.shape[0], view.shape[1], view.shape[2], view.shape[3]}, dtype);
}

}  // namespace

AttentionBackwardCall::AttentionBackwardCall(const AttentionCall& call, const Tensor& grad_out,
                                             const std::optional<Tensor>& grad_lse, std::int64_t wanted)
    : grad_out_(has_unit_last_stride(grad_out) ? grad_out : torch::stable::contiguous(grad_out)),
      grad_lse_(grad_lse) {
  if (wanted < 0 || wanted >= 1 << kGradients)
    throw std::invalid_argument("wanted is " + std::to_string(wanted) +
                                "; allowed are sums of 1, 2, 4, 8, 16");
  args_.forward = call.args;
  args_.grad_out = view_of(grad_out_, "grad_out");
  if (grad_lse_.has_value() && grad_lse_->defined()) args_.grad_lse = view_of(*grad_lse_, "grad_lse");
  const DType statistics = call.args.query.dtype == DType::f64 ? DType::f64 : DType::f32;

  const Tensor* inputs[] = {&call.query(), &call.key(), &call.value()};
  const TensorView* views[] = {&call.args.query, &call.args.key, &call.args.value};
  TensorView* gradients[] = {&args_.grad_query, &args_.grad_key, &args_.grad_value};
  static constexpr const char* kNames[] = {"grad_query", "grad_key", "grad_value"};
  for (int i = 0; i < 3; ++i) {
    if (!(wanted >> i & 1)) {
      gradients_[i] = empty_dense({0}, call.args.query.dtype);
      continue;
    }
    const auto& shape = views[i]->shape;
    gradients_[i] = empty_like_layout({shape[0], shape[1], shape[2], shape[3]}, *inputs[i]);
    *gradients[i] = view_of(gradients_[i], kNames[i]);
  }
  gradients_[3] = wanted & kMask && call.args.attn_mask ? statistics_like(call.args.attn_mask, statistics)
                                                        : empty_dense({0}, statistics);
  if (wanted & kMask) args_.grad_mask = view_of(gradients_[3], "grad_mask");
  gradients_[4] = wanted & kSinks && call.args.sinks ? statistics_like(call.args.sinks, statistics)
                                                     : empty_dense({0}, statistics);
  if (wanted & kSinks) args_.grad_sinks = view_of(gradients_[4], "grad_sinks");
}

Status AttentionBackwardCall::plan(AttentionBackwardPlan* plan) const {
  return plan_attention_backward(args_, TorchExecutor().threads(), plan);
}

Status AttentionBackwardCall::try_run() {
  TorchExecutor executor;
  return attention_backward(args_, executor);
}

void AttentionBackwardCall::run() { raise_if_failed(try_run()); }

}  // namespace tileformer::torch_binding
