// torch.ops.tileformer.grouped_matmul: rows in the order of their experts times each expert's weights, and
// its gradients. Fake kernels, autocast and autograd are in python/tileformer/_grouped_matmul_ops.py.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>

#include <array>
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>

#include "status_error.h"
#include "tileformer/grouped_matmul.h"
#include "torch_executor.h"
#include "torch_tensor.h"

namespace tileformer::torch_binding {
namespace {

using torch::stable::detail::from;
using torch::stable::detail::to;
using OptionalTensor = std::optional<Tensor>;

void need_dimensions(const Tensor& tensor, const char* name, std::int64_t rank, const char* layout) {
  if (tensor.dim() != rank)
    throw std::invalid_argument(std::string(name) + ": got " + std::to_string(tensor.dim()) +
                                " dimensions, expected " + std::to_string(rank) + ", " + layout);
}

Tensor with_unit_last_stride(const Tensor& tensor) {
  return has_unit_last_stride(tensor) ? tensor : torch::stable::contiguous(tensor);
}

// Weights are read as they are if their elements are neighbours along `in` or along `out`.
Tensor with_unit_stride(const Tensor& weight) {
  for (int i : {1, 2})
    if (weight.strides()[i] == 1 || weight.sizes()[i] <= 1) return weight;
  return torch::stable::contiguous(weight);
}

// Whether neighbours in memory are elements of different rows: [experts, in, out] storage.
bool stored_across(const Tensor& weight) {
  return weight.strides()[1] == 1 && weight.strides()[2] != 1 && weight.sizes()[2] > 1;
}

// What forward and backward are both given. The tensors live as long as the views are used.
struct Inputs {
  Tensor rows, weight, counts;
  OptionalTensor bias;

  explicit Inputs(StableIValue* stack)
      : rows(to<Tensor>(stack[0])),
        weight(to<Tensor>(stack[1])),
        counts(to<Tensor>(stack[2])),
        bias(to<OptionalTensor>(stack[3])) {}

  GroupedMatmulArgs args() {
    need_dimensions(rows, "rows", 2, "[rows, in]");
    need_dimensions(weight, "weight", 3, "[experts, out, in]");
    rows = with_unit_last_stride(rows);
    weight = with_unit_stride(weight);
    GroupedMatmulArgs args;
    args.rows = view_of(rows, "rows");
    args.weights.weight = view_of(weight, "weight");
    args.counts = view_of(counts, "counts");
    if (bias.has_value() && bias->defined()) {
      bias = with_unit_last_stride(*bias);
      args.weights.bias = view_of(*bias, "bias");
    }
    return args;
  }
};

void grouped_matmul_op(StableIValue* stack, std::uint64_t, std::uint64_t) {
  Inputs inputs(stack);
  GroupedMatmulArgs args = inputs.args();
  const Tensor out = empty_dense({args.rows.shape[0], args.weights.weight.shape[1]}, args.rows.dtype);
  args.out = view_of(out, "out");
  TorchExecutor executor;
  raise_if_failed(grouped_matmul(args, executor));
  stack[0] = from(out);
}

enum Wanted : std::int64_t { kGradRows = 1, kGradWeight = 2, kGradBias = 4 };

void grouped_matmul_backward_op(StableIValue* stack, std::uint64_t, std::uint64_t) {
  Inputs inputs(stack);
  const Tensor grad_out = with_unit_last_stride(to<Tensor>(stack[4]));
  const auto wanted = to<std::int64_t>(stack[5]);
  GroupedMatmulBackwardArgs args;
  args.forward = inputs.args();
  args.grad_out = view_of(grad_out, "grad_out");
  const TensorView &rows = args.forward.rows, &weight = args.forward.weights.weight;
  const TensorView& bias = args.forward.weights.bias;
  // Each its own: an operator's results must not share memory.
  Tensor grad_rows = empty_dense({0}, rows.dtype), grad_weight = empty_dense({0}, rows.dtype),
         grad_bias = empty_dense({0}, rows.dtype);
  if (wanted & kGradRows) {
    grad_rows = empty_dense({rows.shape[0], rows.shape[1]}, rows.dtype);
    args.grad_rows = view_of(grad_rows, "grad_rows");
  }
  if (wanted & kGradWeight) {
    const std::array<int, 3> order = stored_across(inputs.weight) ? std::array{0, 2, 1} : std::array{0, 1, 2};
    grad_weight = empty_in_order({weight.shape[0], weight.shape[1], weight.shape[2]}, order, weight.dtype);
    args.grad_weight = view_of(grad_weight, "grad_weight");
  }
  if (wanted & kGradBias) {
    if (!bias) throw std::invalid_argument("wanted: got the gradient of bias, expected none without bias");
    grad_bias = empty_dense({weight.shape[0], weight.shape[1]}, bias.dtype);
    args.grad_bias = view_of(grad_bias, "grad_bias");
  }
  TorchExecutor executor;
  raise_if_failed(grouped_matmul_backward(args, executor));
  stack[0] = from(grad_rows);
  stack[1] = from(grad_weight);
  stack[2] = from(grad_bias);
}

// Every device and layout but a dense CPU tensor ends here.
void refuse_device(StableIValue* stack, std::uint64_t arguments, std::uint64_t) {
  const Inputs inputs(stack);
  if (arguments > 4) const Tensor grad_out = to<Tensor>(stack[4]);
  throw std::invalid_argument("all tensors have to be dense and on the CPU: tileformer runs on CPUs only");
}

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(tileformer, m) {
  m.def("grouped_matmul(Tensor rows, Tensor weight, Tensor counts, Tensor? bias=None) -> Tensor");
  m.def(
      "grouped_matmul_backward(Tensor rows, Tensor weight, Tensor counts, Tensor? bias, Tensor grad_out, "
      "int wanted) -> (Tensor grad_rows, Tensor grad_weight, Tensor grad_bias)");
}

STABLE_TORCH_LIBRARY_IMPL(tileformer, CPU, m) {
  m.impl("grouped_matmul", grouped_matmul_op);
  m.impl("grouped_matmul_backward", grouped_matmul_backward_op);
}

STABLE_TORCH_LIBRARY_IMPL(tileformer, CompositeExplicitAutograd, m) {
  m.impl("grouped_matmul", refuse_device);
  m.impl("grouped_matmul_backward", refuse_device);
}

}  // namespace tileformer::torch_binding
