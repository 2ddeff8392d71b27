// route on every unit: against the fp64 reference, ties, NaN and infinities, capacities, threads.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <memory>

#include "moe_route_data.h"
#include "reversed_executor.h"

namespace tileformer::test {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
const double kNaN = std::nan("");

void set_row(const TensorView& view, std::int64_t t, const std::vector<double>& x) {
  for (std::size_t e = 0; e < x.size(); ++e) set(view, {t, std::int64_t(e)}, x[e]);
}

std::vector<double> row(const TensorView& view, std::int64_t t) {
  std::vector<double> x;
  for (std::int64_t j = 0; j < view.shape[1]; ++j) x.push_back(get(view, {t, j}));
  return x;
}

using Row = std::vector<double>;

double exact_key(const RouteArgs& args, std::int64_t t, std::int64_t e) {
  double key = get(args.logits, {t, e});
  if (!args.bias && args.num_groups == args.top_groups) return key;
  if (args.scoring == RouteScoring::sigmoid) {
    key = 1 / (1 + std::exp(-key));
  } else {
    double sum = 0;
    for (std::int64_t i = 0; i < args.logits.shape[1]; ++i) sum += std::exp(get(args.logits, {t, i}) - key);
    key = 1 / sum;
  }
  return key + (args.bias ? get(args.bias, {e}) : 0);
}

// Where fp32 cannot tell two experts apart it may choose either: then the token's weights are others, too.
// Returns whether the choice is the exact one.
bool expect_choice(const RouteArgs& is, const RouteArgs& exact, std::int64_t t) {
  const Row a = row(is.chosen, t), b = row(exact.chosen, t);
  for (std::size_t j = 0; j < a.size(); ++j) {
    if (a[j] == b[j]) continue;
    EXPECT_NEAR(exact_key(exact, t, std::int64_t(a[j])), exact_key(exact, t, std::int64_t(b[j])), 1e-6);
  }
  return a == b;
}

void expect_exact(const RouteCase& c, Edge edge) {
  const RouteData data(c, edge);
  const ExactRoute exact(data);
  ASSERT_TRUE(route_reference(exact.args));
  for (const RouteTarget& target : route_targets()) {
    SCOPED_TRACE(target.name + " " + name_of(c));
    const Status status = run_route(target, data.args);
    ASSERT_TRUE(status) << status.message();
    std::int64_t same = 0;
    for (std::int64_t t = 0; t < c.tokens; ++t) {
      if (!expect_choice(data.args, exact.args, t)) continue;
      ++same;
      EXPECT_EQ(row(data.args.experts, t), row(data.args.chosen, t));
      const Row is = row(data.args.weights, t), expected = row(exact.args.weights, t);
      for (std::size_t j = 0; j < is.size(); ++j) ASSERT_NEAR(is[j], expected[j], 4e-6 * expected[j] + 1e-30);
    }
    EXPECT_GE(4 * same, 3 * c.tokens);
    EXPECT_TRUE(data.clear_outputs()) << "wrote between the elements of an output";
  }
}

TEST(MoeRoute, EverySize) {
  for (DType dtype : {DType::f32, DType::f16, DType::bf16})
    for (std::int64_t experts : {1, 2, 7, 8, 33, 128, 1024})
      for (std::int64_t k : {std::int64_t{1}, std::int64_t{2}, std::int64_t{8}, experts / 2, experts})
        if (k >= 1 && k <= experts)
          for (Edge edge : {Edge::begin, Edge::end})
            expect_exact({.experts = experts, .k = k, .dtype = dtype}, edge);
}

TEST(MoeRoute, EveryOption) {
  const std::int64_t groups[][2] = {{1, 1}, {2, 1}, {8, 3}, {24, 9}, {48, 48}, {48, 7}};
  for (RouteScoring scoring : {RouteScoring::softmax, RouteScoring::sigmoid})
    for (bool bias : {false, true})
      for (bool renormalize : {false, true})
        for (const auto& [num, top] : groups)
          for (DType dtype : {DType::f32, DType::bf16})
            expect_exact({.tokens = 40,
                          .experts = 48,
                          .k = 6,
                          .dtype = dtype,
                          .scoring = scoring,
                          .bias = bias,
                          .num_groups = num,
                          .top_groups = top,
                          .renormalize = renormalize,
                          .scale = 2.5},
                         Edge::end);
}

TEST(MoeRoute, TiesGoToTheLowerIndex) {
  for (const RouteTarget& target : route_targets()) {
    SCOPED_TRACE(target.name);
    const RouteData data({.tokens = 3, .experts = 70, .k = 5});
    set_row(data.args.logits, 0, Row(70, 1.5));
    set_row(data.args.logits, 1, Row(70, -0.0));
    for (std::int64_t e : {60, 3, 44}) set(data.args.logits, {1, e}, 2);
    set(data.args.logits, {1, 7}, 0.0);
    set_row(data.args.logits, 2, Row(70, -kInfinity));
    set(data.args.logits, {2, 69}, 1);
    ASSERT_TRUE(run_route(target, data.args));
    EXPECT_EQ(row(data.args.experts, 0), (Row{0, 1, 2, 3, 4}));
    EXPECT_EQ(row(data.args.experts, 1), (Row{3, 44, 60, 0, 1}));
    EXPECT_EQ(row(data.args.experts, 2), (Row{69, 0, 1, 2, 3}));
    EXPECT_EQ(row(data.args.weights, 2), (Row{1, 0, 0, 0, 0}));

    const RouteData groups({.tokens = 1, .experts = 12, .k = 2, .num_groups = 4, .top_groups = 2});
    set_row(groups.args.logits, 0, Row{0, 1, 2, 3, 0, 0, 2, 0, 3, 0, 3, 2});
    ASSERT_TRUE(run_route(target, groups.args));
    // Of two best: 2 + 1, 3 + 0, 3 + 2, 3 + 3 in logits; group 2 and 3 win in scores as well.
    EXPECT_EQ(row(groups.args.experts, 0), (Row{8, 10}));
    set_row(groups.args.logits, 0, Row(12, 0.0));
    ASSERT_TRUE(run_route(target, groups.args));
    EXPECT_EQ(row(groups.args.experts, 0), (Row{0, 1}));
  }
}

TEST(MoeRoute, ScoresThatVanishKeepOrderAndWeight) {
  for (const RouteTarget& target : route_targets()) {
    SCOPED_TRACE(target.name);
    const RouteData data({.tokens = 1, .experts = 8, .k = 3});
    set_row(data.args.logits, 0, Row{-400, 1000, -200, -300, -500, -600, -700, -800});
    ASSERT_TRUE(run_route(target, data.args));
    EXPECT_EQ(row(data.args.experts, 0), (Row{1, 2, 3}));
    EXPECT_EQ(row(data.args.weights, 0), (Row{1, 0, 0}));

    // A bias may choose what softmax gives nothing.
    const RouteData biased({.tokens = 1, .experts = 4, .k = 2, .bias = true});
    set_row(biased.args.logits, 0, Row{1000, 0, 0, 500});
    for (std::int64_t e = 0; e < 4; ++e) set(biased.args.bias, {e}, e == 0 ? -kInfinity : double(-e));
    ASSERT_TRUE(run_route(target, biased.args));
    EXPECT_EQ(row(biased.args.experts, 0), (Row{1, 2}));
    EXPECT_EQ(row(biased.args.weights, 0), (Row{0.5, 0.5}));

    const RouteData sigmoid({.tokens = 1, .experts = 4, .k = 2, .scoring = RouteScoring::sigmoid});
    set_row(sigmoid.args.logits, 0, Row{-500, -400, -300, -kInfinity});
    ASSERT_TRUE(run_route(target, sigmoid.args));
    EXPECT_EQ(row(sigmoid.args.experts, 0), (Row{2, 1}));
    EXPECT_EQ(row(sigmoid.args.weights, 0), (Row{0, 0}));
  }
}

TEST(MoeRoute, NaNAndInfinitiesStayInTheirRows) {
  for (RouteScoring scoring : {RouteScoring::softmax, RouteScoring::sigmoid}) {
    for (bool bias : {false, true}) {
      const RouteCase c{.tokens = 6,
                        .experts = 40,
                        .k = 4,
                        .scoring = scoring,
                        .bias = bias,
                        .num_groups = 4,
                        .top_groups = bias ? 2 : 4};
      const RouteData data(c), clean(c);
      set(data.args.logits, {0, 39}, kNaN);
      set(data.args.logits, {2, 0}, kNaN);
      set_row(data.args.logits, 2, Row(40, kNaN));
      set(data.args.logits, {4, 11}, kInfinity);
      set_row(data.args.logits, 5, Row(40, -kInfinity));
      const ExactRoute exact(data);
      ASSERT_TRUE(route_reference(exact.args));
      for (const RouteTarget& target : route_targets()) {
        SCOPED_TRACE(target.name);
        ASSERT_TRUE(run_route(target, data.args));
        ASSERT_TRUE(run_route(target, clean.args));
        for (std::int64_t t : {1, 3}) {
          EXPECT_EQ(row(data.args.experts, t), row(clean.args.experts, t));
          EXPECT_TRUE(same_bits(row(data.args.weights, t), row(clean.args.weights, t)));
        }
        for (std::int64_t t = 0; t < 6; ++t) {
          const Row weights = row(data.args.weights, t), expected = row(exact.args.weights, t);
          EXPECT_EQ(row(data.args.experts, t), row(exact.args.experts, t));
          const bool nan = t == 0 || t == 2 || (t >= 4 && scoring == RouteScoring::softmax);
          for (std::size_t j = 0; j < 4; ++j) {
            EXPECT_EQ(std::isnan(weights[j]), nan);
            EXPECT_EQ(std::isnan(expected[j]), nan);
          }
          if (nan) {
            EXPECT_EQ(row(data.args.experts, t), (Row{0, 1, 2, 3}));
          }
        }
      }
    }
  }
}

// Experts 0 and 1 by turns are first, all weights of 0 fall with the token.
RouteData crowded(std::int64_t capacity, RouteDrop drop) {
  RouteData data({.tokens = 6,
                  .experts = 3,
                  .k = 2,
                  .scoring = RouteScoring::sigmoid,
                  .renormalize = false,
                  .capacity = capacity,
                  .drop = drop});
  for (std::int64_t t = 0; t < 6; ++t)
    set_row(data.args.logits, t, Row{t == 3 ? 9.0 : 5.0 - double(t), 4, -9.0 + double(t)});
  return data;
}

TEST(MoeRoute, CapacityByPosition) {
  for (const RouteTarget& target : route_targets()) {
    const RouteData data = crowded(4, RouteDrop::position), all = crowded(-1, RouteDrop::position);
    ASSERT_TRUE(run_route(target, data.args));
    ASSERT_TRUE(run_route(target, all.args));
    for (std::int64_t t = 0; t < 6; ++t) {
      EXPECT_EQ(row(data.args.chosen, t), row(all.args.chosen, t));
      if (t < 4) {
        EXPECT_EQ(row(data.args.experts, t), row(all.args.experts, t));
        EXPECT_EQ(row(data.args.weights, t), row(all.args.weights, t));
      } else {
        EXPECT_EQ(row(data.args.experts, t), (Row{-1, -1}));
        EXPECT_EQ(row(data.args.weights, t), (Row{0, 0}));
      }
    }
  }
}

TEST(MoeRoute, CapacityByScore) {
  for (const RouteTarget& target : route_targets()) {
    const RouteData data = crowded(3, RouteDrop::score);
    set(data.args.logits, {5, 2}, kNaN);
    ASSERT_TRUE(run_route(target, data.args));
    const Row of_0{5, 4, 3, 9, 1, kNaN};  // expert 0's logits
    for (std::int64_t t = 0; t < 6; ++t) {
      SCOPED_TRACE(t);
      // Token 5 is NaN and goes before all, at experts 0 and 1; then come 3 and 0 at expert 0, at expert 1,
      // where weights tie, 0 and 1.
      const bool at_0 = t == 0 || t == 3 || t == 5, at_1 = t == 0 || t == 1 || t == 5;
      for (std::int64_t j = 0; j < 2; ++j) {
        const double e = get(data.args.chosen, {t, j});
        const bool kept = e == 0 ? at_0 : at_1;
        EXPECT_EQ(get(data.args.experts, {t, j}), kept ? e : -1);
        const double weight = get(data.args.weights, {t, j});
        if (t == 5)
          EXPECT_TRUE(std::isnan(weight));
        else
          EXPECT_EQ(weight > 0, kept);
      }
    }
  }
}

TEST(MoeRoute, ADroppedRowOfNaNShowsInItsWeights) {
  const RouteData data = crowded(2, RouteDrop::position);
  set(data.args.logits, {4, 0}, kNaN);
  ASSERT_TRUE(route(data.args, serial_executor()));
  EXPECT_EQ(row(data.args.experts, 4), (Row{-1, -1}));
  for (double w : row(data.args.weights, 4)) EXPECT_TRUE(std::isnan(w));
}

// The rest of a token keeps the weight that it had beside what was dropped.
TEST(MoeRoute, DropsAfterItRenormalizes) {
  for (RouteDrop drop : {RouteDrop::position, RouteDrop::score}) {
    const RouteCase c{.tokens = 50, .experts = 8, .k = 3, .capacity = 10, .drop = drop};
    RouteData data(c);
    RouteCase free = c;
    free.capacity = -1;
    const RouteData all(free);
    ASSERT_TRUE(route(data.args, serial_executor()));
    ASSERT_TRUE(route(all.args, serial_executor()));
    std::int64_t served[8] = {}, wanted[8] = {};
    for_each_index(data.args.experts, [&](const Index& at) {
      const double e = get(data.args.experts, at);
      ++wanted[std::int64_t(get(all.args.experts, at))];
      EXPECT_EQ(get(data.args.chosen, at), get(all.args.experts, at));
      if (e >= 0) ++served[std::int64_t(e)];
      EXPECT_EQ(get(data.args.weights, at), e < 0 ? 0 : get(all.args.weights, at));
    });
    for (std::size_t e = 0; e < 8; ++e) EXPECT_EQ(served[e], std::min<std::int64_t>(wanted[e], 10));

    // Without a place for the choice the rest is the same.
    const Row experts = elements_of(data.args.experts), weights = elements_of(data.args.weights);
    data.clear_outputs();
    data.args.chosen = {};
    ASSERT_TRUE(route(data.args, serial_executor()));
    EXPECT_EQ(elements_of(data.args.experts), experts);
    EXPECT_TRUE(same_bits(elements_of(data.args.weights), weights));
  }
}

TEST(MoeRoute, SameBitsForAnyNumberOfThreads) {
  const std::unique_ptr<Executor> three = make_thread_pool(3);
  ReversedExecutor reversed;
  for (const RouteTarget& target : route_targets()) {
    for (RouteDrop drop : {RouteDrop::position, RouteDrop::score}) {
      const RouteCase c{.tokens = 1000,
                        .experts = 60,
                        .k = 6,
                        .bias = true,
                        .num_groups = 6,
                        .top_groups = 4,
                        .capacity = 80,
                        .drop = drop};
      const RouteData data(c);
      ASSERT_TRUE(run_route(target, data.args));
      const Row experts = elements_of(data.args.experts), weights = elements_of(data.args.weights);
      for (Executor* executor : {three.get(), static_cast<Executor*>(&reversed)}) {
        data.clear_outputs();
        ASSERT_TRUE(run_route(target, data.args, *executor));
        EXPECT_TRUE(same_bits(elements_of(data.args.experts), experts));
        EXPECT_TRUE(same_bits(elements_of(data.args.weights), weights));
      }
    }
  }
}

TEST(MoeRoute, NoTokens) {
  for (std::int64_t capacity : {-1, 0, 3})
    for (RouteDrop drop : {RouteDrop::position, RouteDrop::score})
      for (DType dtype : {DType::f32, DType::f64}) {
        const RouteData data({.tokens = 0, .dtype = dtype, .capacity = capacity, .drop = drop});
        ASSERT_TRUE(route(data.args, serial_executor()));
        ASSERT_TRUE(route_backward(data.backward, serial_executor()));
      }
}

TEST(MoeRoute, CapacityOfNothingDropsAll) {
  for (RouteDrop drop : {RouteDrop::position, RouteDrop::score}) {
    const RouteData data({.capacity = 0, .drop = drop});
    ASSERT_TRUE(route(data.args, serial_executor()));
    for (double e : elements_of(data.args.experts)) EXPECT_EQ(e, -1);
    for (double w : elements_of(data.args.weights)) EXPECT_EQ(w, 0);
  }
}

}  // namespace
}  // namespace tileformer::test
