// route_backward: the reference against differences of the forward, every unit against the reference.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>

#include "moe_route_data.h"

namespace tileformer::test {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

std::vector<RouteCase> cases(DType dtype) {
  std::vector<RouteCase> all;
  for (RouteScoring scoring : {RouteScoring::softmax, RouteScoring::sigmoid})
    for (bool renormalize : {false, true})
      for (std::int64_t experts : {1, 9, 64, 200})
        for (std::int64_t k : {1, 3, 9})
          for (std::int64_t capacity : {-1, 2})
            if (k <= experts)
              all.push_back({.tokens = 7,
                             .experts = experts,
                             .k = k,
                             .dtype = dtype,
                             .scoring = scoring,
                             .bias = k == 3,
                             .renormalize = renormalize,
                             .scale = 1.5,
                             .capacity = capacity});
  return all;
}

double loss(const RouteArgs& args, const TensorView& grad_weights) {
  EXPECT_TRUE(route_reference(args));
  double sum = 0;
  for_each_index(args.weights,
                 [&](const Index& at) { sum += get(args.weights, at) * get(grad_weights, at); });
  return sum;
}

TEST(MoeRouteBackward, ReferenceIsTheDerivative) {
  for (const RouteCase& c : cases(DType::f64)) {
    if (c.experts > 64) continue;
    SCOPED_TRACE(name_of(c));
    const RouteData data(c);
    ASSERT_TRUE(route_reference(data.args));
    ASSERT_TRUE(route_backward_reference(data.backward));
    const std::vector<double> chosen = elements_of(data.args.chosen);
    for_each_index(data.args.logits, [&](const Index& at) {
      const double x = get(data.args.logits, at), step = 1e-6;
      set(data.args.logits, at, x + step);
      const double above = loss(data.args, data.backward.grad_weights);
      set(data.args.logits, at, x - step);
      const double below = loss(data.args, data.backward.grad_weights);
      set(data.args.logits, at, x);
      ASSERT_EQ(elements_of(data.args.chosen), chosen) << "the step changed the choice";
      ASSERT_NEAR(get(data.backward.grad_logits, at), (above - below) / (2 * step), 1e-8);
    });
  }
}

double tolerance(DType dtype) { return dtype == DType::bf16 ? 0x1p-8 : dtype == DType::f16 ? 0x1p-11 : 4e-6; }

TEST(MoeRouteBackward, EveryCase) {
  for (DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    for (const RouteCase& c : cases(dtype)) {
      for (Edge edge : {Edge::begin, Edge::end}) {
        const RouteData data(c, edge);
        const ExactRoute exact(data);
        ASSERT_TRUE(route_reference(exact.args));
        ASSERT_TRUE(route_backward_reference(exact.backward));
        RouteBackwardArgs args = data.backward;
        args.experts = exact.args.experts;
        args.chosen = exact.args.chosen;
        const std::vector<double> expected = elements_of(exact.backward.grad_logits);
        double largest = 0;
        for (double x : expected) largest = std::max(largest, std::abs(x));
        for (const RouteBackwardTarget& target : route_backward_targets()) {
          SCOPED_TRACE(target.name + " " + name_of(c));
          const Status status = run_route_backward(target, args);
          ASSERT_TRUE(status) << status.message();
          const std::vector<double> is = elements_of(args.grad_logits);
          for (std::size_t i = 0; i < is.size(); ++i)
            ASSERT_NEAR(is[i], expected[i], tolerance(dtype) * std::abs(expected[i]) + 1e-6 * largest + 1e-7);
          EXPECT_TRUE(data.clear_outputs()) << "wrote between the elements of an output";
          if (c.capacity >= 0) continue;
          args.chosen = {};
          ASSERT_TRUE(run_route_backward(target, args));
          EXPECT_TRUE(same_bits(elements_of(args.grad_logits), is));
          args.chosen = exact.args.chosen;
        }
      }
    }
  }
}

TEST(MoeRouteBackward, WhatWasDroppedHasNoInfluence) {
  for (bool renormalize : {false, true}) {
    const RouteData data({.tokens = 9, .experts = 6, .k = 2, .renormalize = renormalize, .capacity = 2});
    ASSERT_TRUE(route(data.args, serial_executor()));
    const std::vector<double> experts = elements_of(data.args.experts);
    ASSERT_GT(std::count(experts.begin(), experts.end(), -1), 2);
    for (const RouteBackwardTarget& target : route_backward_targets()) {
      ASSERT_TRUE(run_route_backward(target, data.backward));
      const std::vector<double> before = elements_of(data.backward.grad_logits);
      for_each_index(data.args.experts, [&](const Index& at) {
        if (get(data.args.experts, at) < 0) set(data.backward.grad_weights, at, std::nan(""));
      });
      ASSERT_TRUE(run_route_backward(target, data.backward));
      EXPECT_TRUE(same_bits(elements_of(data.backward.grad_logits), before));
    }
  }
}

TEST(MoeRouteBackward, NaNStaysInItsRow) {
  for (RouteScoring scoring : {RouteScoring::softmax, RouteScoring::sigmoid}) {
    for (bool renormalize : {false, true}) {
      const RouteData data(
          {.tokens = 5, .experts = 20, .k = 3, .scoring = scoring, .renormalize = renormalize});
      set(data.args.logits, {1, 19}, std::nan(""));
      set(data.args.logits, {3, 4}, kInfinity);
      set(data.args.logits, {4, 4}, -kInfinity);
      set(data.backward.grad_weights, {2, 1}, std::nan(""));
      ASSERT_TRUE(route(data.args, serial_executor()));
      for (const RouteBackwardTarget& target : route_backward_targets()) {
        ASSERT_TRUE(run_route_backward(target, data.backward));
        for (std::int64_t e = 0; e < 20; ++e) {
          const auto nan = [&](std::int64_t t) { return std::isnan(get(data.backward.grad_logits, {t, e})); };
          EXPECT_FALSE(nan(0));
          EXPECT_TRUE(nan(1));
          EXPECT_EQ(nan(3), scoring == RouteScoring::softmax);
          EXPECT_FALSE(nan(4));
        }
        const auto e = static_cast<std::int64_t>(get(data.args.experts, {2, 1}));
        EXPECT_TRUE(std::isnan(get(data.backward.grad_logits, {2, e})));
        EXPECT_EQ(get(data.backward.grad_logits, {4, 4}), 0);
      }
    }
  }
}

TEST(MoeRouteBackward, SameBitsForAnyNumberOfThreads) {
  const std::unique_ptr<Executor> three = make_thread_pool(3);
  const RouteData data({.tokens = 1000, .experts = 60, .k = 6});
  ASSERT_TRUE(route(data.args, serial_executor()));
  for (const RouteBackwardTarget& target : route_backward_targets()) {
    ASSERT_TRUE(run_route_backward(target, data.backward));
    const std::vector<double> expected = elements_of(data.backward.grad_logits);
    ASSERT_TRUE(run_route_backward(target, data.backward, *three));
    EXPECT_TRUE(same_bits(elements_of(data.backward.grad_logits), expected));
  }
}

}  // namespace
}  // namespace tileformer::test
