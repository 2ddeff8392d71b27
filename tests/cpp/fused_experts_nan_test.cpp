// NaN: in a token it stays in the token's row, in a routing weight in its token's, in weights with the tokens
// of their expert; what has no influence changes no bit.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <string>
#include <tuple>
#include <vector>

#include "fused_experts_data.h"
#include "fused_experts_runner.h"

namespace tileformer::test {
namespace {

const double kNaN = std::nan("");

class FusedExpertsNaN : public testing::TestWithParam<std::tuple<std::int64_t, DType>> {
 protected:
  // Enough tokens for tiles in one case, for streamed rows in the other.
  ExpertsCase shape() const {
    return {.name = "",
            .tokens = std::get<0>(GetParam()),
            .k = 3,
            .experts = 5,
            .hidden = 40,
            .inter = 24,
            .bias = true,
            .routing = Routing::sentinels};
  }
  DType dtype() const { return std::get<1>(GetParam()); }
};

bool serves(const FusedExpertsArgs& args, std::int64_t token, std::int64_t expert) {
  for (std::int64_t j = 0; j < args.experts.shape[1]; ++j)
    if (get(args.experts, {token, j}) == double(expert)) return true;
  return false;
}

// The rows that reached(token) names are NaN in every column, the others have the bits of before.
void expect_reached(const TensorView& rows, const std::vector<double>& before,
                    const std::function<bool(std::int64_t)>& reached) {
  std::size_t element = 0;
  for_each_index(rows, [&](const Index& at) {
    const double is = get(rows, at), was = before[element++];
    if (reached(at[0]))
      ASSERT_TRUE(std::isnan(is)) << "row " << at[0] << " column " << at[1] << " is " << is;
    else
      ASSERT_TRUE(same_bits(is, was))
          << "row " << at[0] << " column " << at[1] << " was " << was << ", is " << is;
  });
}

TEST_P(FusedExpertsNaN, StaysWhereItBelongs) {
  const ExpertsData data(shape(), dtype());
  const FusedExpertsArgs& args = data.args;
  const std::int64_t tokens = args.hidden.shape[0], token = tokens / 2;
  for (const ExpertsTarget& target : experts_targets(dtype())) {
    SCOPED_TRACE(target.name);
    ASSERT_TRUE(run_experts(target, args));
    const std::vector<double> clean = elements_of(args.out);
    for (double x : clean) ASSERT_FALSE(std::isnan(x));
    const auto poison = [&](const TensorView& view, const Index& at, auto reached) {
      const double healthy = get(view, at);
      set(view, at, kNaN);
      ASSERT_TRUE(run_experts(target, args));
      expect_reached(args.out, clean, reached);
      set(view, at, healthy);
    };
    bool served = false;
    for (std::int64_t e = 0; e < 5; ++e) served = served || serves(args, token, e);
    poison(args.hidden, {token, 7}, [&](std::int64_t t) { return t == token && served; });
    for (std::int64_t j = 0; j < 3; ++j) {
      const double e = get(args.experts, {token, j});
      poison(args.weights, {token, j}, [&](std::int64_t t) { return t == token && e >= 0 && e < 5; });
    }
    for (std::int64_t e : {0, 4}) {
      poison(args.gate_up.weight, {e, 3, 1}, [&](std::int64_t t) { return serves(args, t, e); });
      poison(args.gate_up.weight, {e, 24 + 23, 39}, [&](std::int64_t t) { return serves(args, t, e); });
      poison(args.gate_up.bias, {e, 5}, [&](std::int64_t t) { return serves(args, t, e); });
    }
    // A row of down is a column of out.
    const double healthy = get(args.down.weight, {1, 6, 2});
    set(args.down.weight, {1, 6, 2}, kNaN);
    ASSERT_TRUE(run_experts(target, args));
    std::size_t element = 0;
    for_each_index(args.out, [&](const Index& at) {
      const bool reached = at[1] == 6 && serves(args, at[0], 1);
      EXPECT_EQ(std::isnan(get(args.out, at)), reached) << "token " << at[0] << " column " << at[1];
      if (!reached) {
        EXPECT_TRUE(same_bits(get(args.out, at), clean[element]));
      }
      ++element;
    });
    set(args.down.weight, {1, 6, 2}, healthy);
  }
}

TEST_P(FusedExpertsNaN, ReachesTheGradientsItIsPartOf) {
  const ExpertsBackwardData data(shape(), dtype());
  const FusedExpertsBackwardArgs& args = data.backward;
  const FusedExpertsArgs& f = args.forward;
  const std::int64_t token = f.hidden.shape[0] / 2;
  for (const ExpertsTarget& target : experts_targets(dtype())) {
    SCOPED_TRACE(target.name);
    ASSERT_TRUE(run_experts_backward(target, args));
    std::vector<std::vector<double>> clean;
    for (int i = 0; i < kExpertsGradients; ++i) {
      clean.push_back(elements_of(gradient_view(args, i)));
      for (double x : clean.back()) ASSERT_FALSE(std::isnan(x)) << kExpertsGradientNames[i];
    }
    for (const TensorView& view : {args.grad_out, f.hidden}) {
      const double healthy = get(view, {token, 11});
      set(view, {token, 11}, kNaN);
      ASSERT_TRUE(run_experts_backward(target, args));
      const auto of_token = [&](std::int64_t t) {
        bool served = false;
        for (std::int64_t e = 0; e < 5; ++e) served = served || serves(f, token, e);
        return t == token && served;
      };
      expect_reached(args.grad_hidden, clean[kGradHidden], of_token);
      std::size_t element = 0;
      for_each_index(args.grad_weights, [&](const Index& at) {
        const double e = get(f.experts, at), is = get(args.grad_weights, at);
        const bool reached = at[0] == token && e >= 0 && e < 5;
        EXPECT_TRUE(reached ? std::isnan(is) : same_bits(is, clean[kGradWeights][element])) << at[0];
        ++element;
      });
      element = 0;
      for_each_index(args.grad_gate_up, [&](const Index& at) {
        const double is = get(args.grad_gate_up, at);
        EXPECT_TRUE(serves(f, token, at[0]) ? std::isnan(is) : same_bits(is, clean[kGradGateUp][element]))
            << "expert " << at[0];
        ++element;
      });
      set(view, {token, 11}, healthy);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Tokens, FusedExpertsNaN,
                         testing::Combine(testing::Values(4, 70),
                                          testing::Values(DType::f32, DType::f16, DType::bf16)),
                         [](const auto& info) {
                           return std::to_string(std::get<0>(info.param)) + "_" +
                                  name_of(std::get<1>(info.param));
                         });

}  // namespace
}  // namespace tileformer::test
