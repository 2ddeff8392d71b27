// torch.ops.tileformer.permute_tokens, unpermute_tokens and unpermute_tokens_backward. Autograd is in
// tileformer/_permutation_ops.py.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/tensor.h>

#include <cstdint>
#include <stdexcept>
#include <string>

#include "require_rank.h"
#include "status_error.h"
#include "tileformer/permute_tokens.h"
#include "torch_executor.h"
#include "torch_tensor.h"

namespace tileformer::torch_binding {
namespace {

using torch::stable::detail::from;
using torch::stable::detail::to;

constexpr const char* kTokensLayout = "[tokens, hidden]";
constexpr const char* kRowsLayout = "[rows, hidden]";
constexpr const char* kSlotsLayout = "[tokens, k]";

void permute_tokens_op(StableIValue* stack, std::uint64_t, std::uint64_t) {
  const Tensor tokens = with_unit_last_stride(to<Tensor>(stack[0])), experts = to<Tensor>(stack[1]);
  const auto num_experts = to<std::int64_t>(stack[2]);
  PermuteTokensArgs args;
  args.tokens = view_of(tokens, "tokens");
  args.experts = view_of(experts, "experts");
  require_rank("tokens", args.tokens, 2, kTokensLayout);
  require_rank("experts", args.experts, 2, kSlotsLayout);
  if (num_experts < 1 || num_experts > INT32_MAX)
    throw std::invalid_argument("num_experts: got " + std::to_string(num_experts) + ", expected 1 to " +
                                std::to_string(INT32_MAX));
  const std::int64_t pairs = args.experts.elements();
  const Tensor rows = empty_dense({pairs, args.tokens.shape[1]}, args.tokens.dtype);
  const Tensor counts = empty_dense({num_experts}, DType::i64), source = empty_dense({pairs}, DType::i64);
  args.rows = view_of(rows, "rows");
  args.counts = view_of(counts, "counts");
  args.source = view_of(source, "source");
  TorchExecutor executor;
  raise_if_failed(permute_tokens(args, executor));
  stack[0] = from(rows);
  stack[1] = from(counts);
  stack[2] = from(source);
}

void unpermute_tokens_op(StableIValue* stack, std::uint64_t, std::uint64_t) {
  const Tensor rows = with_unit_last_stride(to<Tensor>(stack[0])), source = to<Tensor>(stack[1]),
               weights = to<Tensor>(stack[2]);
  UnpermuteTokensArgs args;
  args.rows = view_of(rows, "rows");
  args.source = view_of(source, "source");
  args.weights = view_of(weights, "weights");
  require_rank("rows", args.rows, 2, kRowsLayout);
  require_rank("weights", args.weights, 2, kSlotsLayout);
  const Tensor out = empty_dense({args.weights.shape[0], args.rows.shape[1]}, args.rows.dtype);
  args.out = view_of(out, "out");
  TorchExecutor executor;
  raise_if_failed(unpermute_tokens(args, executor));
  stack[0] = from(out);
}

void unpermute_tokens_backward_op(StableIValue* stack, std::uint64_t, std::uint64_t) {
  const Tensor grad_out = with_unit_last_stride(to<Tensor>(stack[0])),
               rows = with_unit_last_stride(to<Tensor>(stack[1])), source = to<Tensor>(stack[2]),
               weights = to<Tensor>(stack[3]);
  const bool want_rows = to<bool>(stack[4]), want_weights = to<bool>(stack[5]);
  UnpermuteTokensBackwardArgs args;
  args.rows = view_of(rows, "rows");
  args.source = view_of(source, "source");
  args.weights = view_of(weights, "weights");
  args.grad_out = view_of(grad_out, "grad_out");
  require_rank("rows", args.rows, 2, kRowsLayout);
  require_rank("weights", args.weights, 2, kSlotsLayout);
  const auto gradient = [](bool want, const TensorView& like) {
    return want ? empty_dense({like.shape[0], like.shape[1]}, like.dtype) : empty_dense({0}, like.dtype);
  };
  const Tensor grad_rows = gradient(want_rows, args.rows);
  const Tensor grad_weights = gradient(want_weights, args.weights);
  if (want_rows) args.grad_rows = view_of(grad_rows, "grad_rows");
  if (want_weights) args.grad_weights = view_of(grad_weights, "grad_weights");
  TorchExecutor executor;
  raise_if_failed(unpermute_tokens_backward(args, executor));
  stack[0] = from(grad_rows);
  stack[1] = from(grad_weights);
}

// Every device and layout but a dense CPU tensor ends in one of these.
template <int kTensors>
void refuse_device(StableIValue* stack, std::uint64_t, std::uint64_t) {
  for (int i = 0; i < kTensors; ++i) to<Tensor>(stack[i]);  // the stack owns them no more
  throw std::invalid_argument("all tensors have to be dense and on the CPU: tileformer runs on CPUs only");
}

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(tileformer, m) {
  m.def(
      "permute_tokens(Tensor tokens, Tensor experts, SymInt num_experts) "
      "-> (Tensor rows, Tensor counts, Tensor source)");
  m.def("unpermute_tokens(Tensor rows, Tensor source, Tensor weights) -> Tensor");
  m.def(
      "unpermute_tokens_backward(Tensor grad_out, Tensor rows, Tensor source, Tensor weights, bool "
      "want_rows, "
      "bool want_weights) -> (Tensor grad_rows, Tensor grad_weights)");
}

STABLE_TORCH_LIBRARY_IMPL(tileformer, CPU, m) {
  m.impl("permute_tokens", permute_tokens_op);
  m.impl("unpermute_tokens", unpermute_tokens_op);
  m.impl("unpermute_tokens_backward", unpermute_tokens_backward_op);
}

STABLE_TORCH_LIBRARY_IMPL(tileformer, CompositeExplicitAutograd, m) {
  m.impl("permute_tokens", refuse_device<2>);
  m.impl("unpermute_tokens", refuse_device<3>);
  m.impl("unpermute_tokens_backward", refuse_device<4>);
}

}  // namespace tileformer::torch_binding
