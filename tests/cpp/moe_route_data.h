// Random logits in guarded memory, and route with its backward on every unit of the machine.
#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "guarded_tensors.h"
#include "ops/moe/route/units.h"
#include "tileformer/route.h"
#include "unit_targets.h"

namespace tileformer::test {

struct RouteCase {
  std::int64_t tokens = 5, experts = 16, k = 3;
  DType dtype = DType::f32;
  RouteScoring scoring = RouteScoring::softmax;
  bool bias = false;
  std::int64_t num_groups = 1, top_groups = 1;
  bool renormalize = true;
  double scale = 1;
  std::int64_t capacity = -1;
  RouteDrop drop = RouteDrop::position;
};

inline std::string name_of(const RouteCase& c) {
  return std::string(tileformer::name_of(c.dtype)) +
         (c.scoring == RouteScoring::softmax ? " softmax" : " sigmoid") + (c.bias ? " bias" : "") +
         (c.renormalize ? " renormalized" : "") + " " + std::to_string(c.k) + " of " +
         std::to_string(c.experts) + ", groups " + std::to_string(c.top_groups) + " of " +
         std::to_string(c.num_groups);
}

class RouteData {
 public:
  RouteArgs args;
  RouteBackwardArgs backward;  // of what args says; experts are the forward's

  explicit RouteData(const RouteCase& c, Edge edge = Edge::end, unsigned seed = 1) : tensors_(edge) {
    std::mt19937_64 random(seed);
    std::normal_distribution<double> normal;
    const auto fill = [&](const TensorView& view, double spread) {
      for_each_index(view, [&](const Index& at) { set(view, at, spread * normal(random)); });
    };
    const DType f = c.dtype == DType::f64 ? DType::f64 : DType::f32;
    const Sizes rows{c.tokens, c.experts}, slots{c.tokens, c.k};
    const Sizes row_stride{c.experts + 3, 1}, slot_first{1, c.tokens}, slot_last{2 * c.k, 2};
    args.logits = tensors_.allocate(c.dtype, 2, rows, row_stride);
    fill(args.logits, 2);
    if (c.bias) {
      args.bias = tensors_.allocate_dense(f, 1, {c.experts});
      fill(args.bias, c.scoring == RouteScoring::softmax ? 1.0 / double(c.experts) : 0.3);
    }
    args.weights = tensors_.allocate_output(f, 2, slots, slot_last);
    args.experts = tensors_.allocate_output(DType::i32, 2, slots, slot_first);
    args.chosen = tensors_.allocate_output(DType::i32, 2, slots, dense_strides(2, slots));
    args.scoring = c.scoring;
    args.num_groups = c.num_groups;
    args.top_groups = c.top_groups;
    args.renormalize = c.renormalize;
    args.scale = c.scale;
    args.capacity = c.capacity;
    args.drop = c.drop;

    backward.logits = args.logits;
    backward.experts = args.experts;
    backward.chosen = args.chosen;
    backward.grad_weights = tensors_.allocate(f, 2, slots, slot_first);
    fill(backward.grad_weights, 1);
    backward.grad_logits = tensors_.allocate_output(c.dtype, 2, rows, row_stride);
    backward.scoring = c.scoring;
    backward.renormalize = c.renormalize;
    backward.scale = c.scale;
  }

  bool clear_outputs() const { return tensors_.clear_outputs(); }

 private:
  GuardedTensors tensors_;
};

// A call in fp64 on the same numbers.
class ExactRoute {
 public:
  RouteArgs args;
  RouteBackwardArgs backward;

  explicit ExactRoute(const RouteData& data) : args(data.args), backward(data.backward) {
    args.logits = backward.logits = widened(args.logits);
    args.weights = empty(DType::f64, args.weights);
    args.experts = backward.experts = empty(DType::i32, args.experts);
    args.chosen = backward.chosen = empty(DType::i32, args.experts);
    backward.grad_weights = widened(backward.grad_weights);
    backward.grad_logits = empty(DType::f64, args.logits);
  }

 private:
  TensorView empty(DType dtype, const TensorView& like) {
    return tensors_.allocate_dense(dtype, like.rank, {like.shape[0], like.shape[1]});
  }
  TensorView widened(const TensorView& from) {
    const TensorView to = empty(DType::f64, from);
    for_each_index(from, [&](const Index& at) { set(to, at, get(from, at)); });
    return to;
  }

  GuardedTensors tensors_{Edge::end};
};

using RouteTarget = UnitTarget<route_op::Unit>;
using RouteBackwardTarget = UnitTarget<route_op::BackwardUnit>;

inline const std::vector<RouteTarget>& route_targets() {
  static const std::vector<RouteTarget> all = unit_targets(route_op::units());
  return all;
}
inline const std::vector<RouteBackwardTarget>& route_backward_targets() {
  static const std::vector<RouteBackwardTarget> all = unit_targets(route_op::backward_units());
  return all;
}

inline Status run_route(const RouteTarget& on, const RouteArgs& args,
                        Executor& executor = serial_executor()) {
  const ForcedUnit forced(on);
  if (!forced.status()) return forced.status();
  return route(args, executor);
}
inline Status run_route_backward(const RouteBackwardTarget& on, const RouteBackwardArgs& args,
                                 Executor& executor = serial_executor()) {
  const ForcedUnit forced(on);
  if (!forced.status()) return forced.status();
  return route_backward(args, executor);
}

}  // namespace tileformer::test
