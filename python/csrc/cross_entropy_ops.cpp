// torch.ops.tileformer.cross_entropy_rows_: cross-entropy of rows of logits, which gives way to its gradient.
//
// The part of tileformer.linear_cross_entropy that is not a matrix product; python/tileformer/_loss_pass.py
// calls it once for every chunk of rows. No autograd formula: the gradient is what it computes.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/tensor.h>

#include <cstdint>
#include <optional>
#include <stdexcept>

#include "status_error.h"
#include "tileformer/cross_entropy.h"
#include "torch_executor.h"
#include "torch_tensor.h"

namespace tileformer::torch_binding {
namespace {

using torch::stable::detail::to;

void cross_entropy_rows_op(StableIValue* stack, std::uint64_t, std::uint64_t) {
  const Tensor logits = to<Tensor>(stack[0]), target = to<Tensor>(stack[1]), loss = to<Tensor>(stack[2]);
  const auto row_scale = to<std::optional<Tensor>>(stack[3]);
  CrossEntropyArgs args;
  args.ignore_index = to<std::int64_t>(stack[4]);
  args.label_smoothing = to<double>(stack[5]);
  args.z_loss = to<double>(stack[6]);
  args.softcap = to<double>(stack[7]);
  args.gradient = to<bool>(stack[8]);
  args.logits = view_of(logits, "logits");
  args.target = view_of(target, "target");
  args.loss = view_of(loss, "loss");
  if (row_scale.has_value() && row_scale->defined()) args.row_scale = view_of(*row_scale, "row_scale");
  TorchExecutor executor;
  raise_if_failed(cross_entropy(args, executor));
}

// Every device and layout but a dense CPU tensor ends here.
void refuse_device(StableIValue* stack, std::uint64_t, std::uint64_t) {
  const Tensor logits = to<Tensor>(stack[0]), target = to<Tensor>(stack[1]), loss = to<Tensor>(stack[2]);
  const auto row_scale = to<std::optional<Tensor>>(stack[3]);
  throw std::invalid_argument(
      "logits, target and loss have to be dense tensors on the CPU: tileformer runs on CPUs only");
}

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(tileformer, m) {
  m.def(
      "cross_entropy_rows_(Tensor(a!) logits, Tensor target, Tensor(b!) loss, Tensor? row_scale=None, "
      "int ignore_index=-100, float label_smoothing=0.0, float z_loss=0.0, float softcap=0.0, "
      "bool gradient=False) -> ()");
}

STABLE_TORCH_LIBRARY_IMPL(tileformer, CPU, m) { m.impl("cross_entropy_rows_", cross_entropy_rows_op); }

STABLE_TORCH_LIBRARY_IMPL(tileformer, CompositeExplicitAutograd, m) {
  m.impl("cross_entropy_rows_", refuse_device);
}

}  // namespace tileformer::torch_binding
