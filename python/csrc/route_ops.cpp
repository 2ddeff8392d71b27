// torch.ops.tileformer.route: router logits -> (weights, experts, chosen), and its backward. chosen is the
// choice before slots were dropped, empty where there is no capacity. Autograd is in
// tileformer/_routing_ops.py.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/tensor.h>

#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>

#include "optional_view.h"
#include "require_rank.h"
#include "status_error.h"
#include "tileformer/route.h"
#include "torch_executor.h"
#include "torch_tensor.h"

namespace tileformer::torch_binding {
namespace {

using torch::stable::detail::from;
using torch::stable::detail::to;

constexpr const char* kLogitsLayout = "[tokens, experts]";

RouteScoring scoring_of(std::int64_t number) {
  if (number == 0) return RouteScoring::softmax;
  if (number == 1) return RouteScoring::sigmoid;
  throw std::invalid_argument("scoring: got " + std::to_string(number) +
                              ", expected 0 (softmax) or 1 (sigmoid)");
}

RouteDrop drop_of(std::int64_t number) {
  if (number == 0) return RouteDrop::position;
  if (number == 1) return RouteDrop::score;
  throw std::invalid_argument("drop: got " + std::to_string(number) + ", expected 0 (position) or 1 (score)");
}

void route_op(StableIValue* stack, std::uint64_t, std::uint64_t) {
  const Tensor logits = with_unit_last_stride(to<Tensor>(stack[0]));
  const auto k = to<std::int64_t>(stack[1]);
  auto bias = to<std::optional<Tensor>>(stack[2]);
  const auto scoring = to<std::int64_t>(stack[3]);
  RouteArgs args;
  args.num_groups = to<std::int64_t>(stack[4]);
  args.top_groups = to<std::int64_t>(stack[5]);
  args.renormalize = to<bool>(stack[6]);
  args.scale = to<double>(stack[7]);
  const auto capacity = to<std::optional<std::int64_t>>(stack[8]);
  args.drop = drop_of(to<std::int64_t>(stack[9]));
  args.scoring = scoring_of(scoring);
  args.logits = view_of(logits, "logits");
  require_rank("logits", args.logits, 2, kLogitsLayout);
  if (given(bias)) {
    bias = with_unit_last_stride(*bias);
    args.bias = view_of(*bias, "bias");
  }
  const std::int64_t tokens = args.logits.shape[0];
  if (k < 1) throw std::invalid_argument("top_k: got " + std::to_string(k) + ", expected 1 or more");
  if (capacity && *capacity < 0)
    throw std::invalid_argument("capacity: got " + std::to_string(*capacity) + ", expected 0 or more");
  args.capacity = capacity.value_or(-1);

  const Tensor weights = empty_dense({tokens, k}, args.logits.dtype == DType::f64 ? DType::f64 : DType::f32);
  const Tensor experts = empty_dense({tokens, k}, DType::i32);
  const Tensor chosen = capacity ? empty_dense({tokens, k}, DType::i32) : empty_dense({0}, DType::i32);
  args.weights = view_of(weights, "weights");
  args.experts = view_of(experts, "experts");
  if (capacity) args.chosen = view_of(chosen, "chosen");
  TorchExecutor executor;
  raise_if_failed(route(args, executor));
  stack[0] = from(weights);
  stack[1] = from(experts);
  stack[2] = from(chosen);
}

void route_backward_op(StableIValue* stack, std::uint64_t, std::uint64_t) {
  const Tensor grad_weights = to<Tensor>(stack[0]), logits = with_unit_last_stride(to<Tensor>(stack[1])),
               experts = to<Tensor>(stack[2]), chosen = to<Tensor>(stack[3]);
  RouteBackwardArgs args;
  args.scoring = scoring_of(to<std::int64_t>(stack[4]));
  args.renormalize = to<bool>(stack[5]);
  args.scale = to<double>(stack[6]);
  args.grad_weights = view_of(grad_weights, "grad_weights");
  args.logits = view_of(logits, "logits");
  require_rank("logits", args.logits, 2, kLogitsLayout);
  args.experts = view_of(experts, "experts");
  if (chosen.dim() == 2) args.chosen = view_of(chosen, "chosen");
  const Tensor grad_logits = empty_dense({args.logits.shape[0], args.logits.shape[1]}, args.logits.dtype);
  args.grad_logits = view_of(grad_logits, "grad_logits");
  TorchExecutor executor;
  raise_if_failed(route_backward(args, executor));
  stack[0] = from(grad_logits);
}

// Every device and layout but a dense CPU tensor ends in one of these.
[[noreturn]] void refuse() {
  throw std::invalid_argument("all tensors have to be dense and on the CPU: tileformer runs on CPUs only");
}

void refuse_route(StableIValue* stack, std::uint64_t, std::uint64_t) {
  const Tensor logits = to<Tensor>(stack[0]);
  const auto bias = to<std::optional<Tensor>>(stack[2]);
  refuse();
}

void refuse_route_backward(StableIValue* stack, std::uint64_t, std::uint64_t) {
  const Tensor grad_weights = to<Tensor>(stack[0]), logits = to<Tensor>(stack[1]),
               experts = to<Tensor>(stack[2]), chosen = to<Tensor>(stack[3]);
  refuse();
}

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(tileformer, m) {
  m.def(
      "route(Tensor logits, int top_k, Tensor? bias=None, int scoring=0, int num_groups=1, int top_groups=1, "
      "bool renormalize=True, float scale=1.0, SymInt? capacity=None, int drop=0) "
      "-> (Tensor weights, Tensor experts, Tensor chosen)");
  m.def(
      "route_backward(Tensor grad_weights, Tensor logits, Tensor experts, Tensor chosen, int scoring, "
      "bool renormalize, float scale) -> Tensor");
}

STABLE_TORCH_LIBRARY_IMPL(tileformer, CPU, m) {
  m.impl("route", route_op);
  m.impl("route_backward", route_backward_op);
}

STABLE_TORCH_LIBRARY_IMPL(tileformer, CompositeExplicitAutograd, m) {
  m.impl("route", refuse_route);
  m.impl("route_backward", refuse_route_backward);
}

}  // namespace tileformer::torch_binding
