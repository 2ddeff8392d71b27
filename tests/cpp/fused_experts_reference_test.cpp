// fused_experts_reference against the formula of one element written out, quantised weights against the
// numbers they stand for, and the backward against central differences of the forward, in fp64.
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "fused_experts_accuracy.h"

namespace tileformer::test {
namespace {

using moe::case_table::kActivations;

double activated(ExpertActivation activation, double gate, double up, double alpha, double limit) {
  const double kPi = std::acos(-1.0);
  switch (activation) {
    case ExpertActivation::silu: return up * gate / (1 + std::exp(-gate));
    case ExpertActivation::gelu: return up * gate * std::erfc(-gate / std::sqrt(2.0)) / 2;
    case ExpertActivation::gelu_tanh:
      return up * gate * (1 + std::tanh(std::sqrt(2 / kPi) * (gate + 0.044715 * std::pow(gate, 3)))) / 2;
    case ExpertActivation::swiglu_oai: {
      const double g = gate < limit ? gate : limit, u = up > limit ? limit : up < -limit ? -limit : up;
      return (u + 1) * g / (1 + std::exp(-alpha * g));
    }
  }
  return 0;
}

TEST(FusedExpertsReference, IsTheFormula) {
  for (const auto& [activation, name] : kActivations) {
    const ExpertActivation of = activation;
    for (bool interleaved : {false, true}) {
      SCOPED_TRACE(name);
      const ExpertsData data({.tokens = 3,
                              .k = 2,
                              .experts = 3,
                              .hidden = 5,
                              .inter = 4,
                              .activation = of,
                              .limit = 0.4,
                              .interleaved = interleaved,
                              .transposed = interleaved,
                              .bias = true},
                             DType::f64);
      const FusedExpertsArgs& a = data.args;
      ASSERT_TRUE(fused_experts_reference(a));
      for (std::int64_t t = 0; t < 3; ++t) {
        for (std::int64_t c = 0; c < 5; ++c) {
          double out = 0;
          for (std::int64_t j = 0; j < 2; ++j) {
            const auto e = static_cast<std::int64_t>(get(a.experts, {t, j}));
            double y = get(a.down.bias, {e, c});
            for (std::int64_t i = 0; i < 4; ++i) {
              const auto row = [&](std::int64_t r) {
                double x = get(a.gate_up.bias, {e, r});
                for (std::int64_t d = 0; d < 5; ++d)
                  x += get(a.gate_up.weight, {e, r, d}) * get(a.hidden, {t, d});
                return x;
              };
              const double gate = row(interleaved ? 2 * i : i), up = row(interleaved ? 2 * i + 1 : 4 + i);
              y += get(a.down.weight, {e, c, i}) * activated(of, gate, up, a.alpha, a.limit);
            }
            out += get(a.weights, {t, j}) * y;
          }
          ASSERT_NEAR(get(a.out, {t, c}), out, 1e-13) << "token " << t << " column " << c;
        }
      }
    }
  }
}

TEST(FusedExpertsReference, CodesAreTheNumbersTheyStandFor) {
  for (DType codes : {DType::i8, DType::i4x2}) {
    const ExpertsCase c{.name = "", .hidden = 64, .inter = 32, .codes = codes};
    const ExpertsData data(c, DType::f64);
    ASSERT_TRUE(fused_experts_reference(data.args));
    const std::vector<double> out = elements_of(data.args.out);

    FusedExpertsArgs plain = data.args;
    std::vector<double> storage[2];
    int next = 0;
    for (ExpertWeights* w : {&plain.gate_up, &plain.down}) {
      const std::int64_t rows = w->weight.shape[1],
                         columns = w->weight.shape[2] * (codes == DType::i4x2 ? 2 : 1);
      for (std::int64_t e = 0; e < c.experts; ++e)
        for (std::int64_t r = 0; r < rows; ++r)
          for (std::int64_t i = 0; i < columns; ++i) {
            int code = static_cast<const std::int8_t*>(
                w->weight.data)[offset_of(w->weight, {e, r, codes == DType::i8 ? i : i / 2})];
            double scale = codes == DType::i8 ? get(w->scale, {e, r}) : get(w->scale, {e, r, i / c.group});
            if (codes == DType::i4x2) {
              code = i % 2 ? (code >> 4) & 15 : code & 15;
              if (code > 7) code -= 16;
            }
            storage[next].push_back(code * scale);
          }
      w->weight = TensorView::dense(storage[next++].data(), DType::f64, {c.experts, rows, columns});
      w->scale = {};
    }
    ASSERT_TRUE(fused_experts_reference(plain));
    EXPECT_TRUE(same_bits(elements_of(plain.out), out)) << name_of(codes);
  }
}

class FusedExpertsDerivative : public testing::TestWithParam<ExpertsCase> {
 protected:
  static double loss(const FusedExpertsBackwardArgs& args) {
    FusedExpertsArgs forward = args.forward;
    forward.gate_up_out = {};
    EXPECT_TRUE(fused_experts_reference(forward));
    double sum = 0;
    for_each_index(args.grad_out,
                   [&](const Index& at) { sum += get(args.grad_out, at) * get(forward.out, at); });
    return sum;
  }
};

TEST_P(FusedExpertsDerivative, OfEveryElement) {
  const ExpertsBackwardData data(GetParam(), DType::f64);
  const FusedExpertsBackwardArgs& args = data.backward;
  ASSERT_TRUE(fused_experts_reference(args.forward));
  const Status status = fused_experts_backward_reference(args);
  ASSERT_TRUE(status) << status.message();
  constexpr double kStep = 1e-5;
  for (int i = 0; i < kExpertsGradients; ++i) {
    const TensorView &input = differentiated_view(args.forward, i), &grad = gradient_view(args, i);
    if (!grad) continue;
    for_each_index(grad, [&](const Index& at) {
      const double before = get(input, at);
      if (std::isnan(before)) {  // no influence, and no gradient
        ASSERT_EQ(get(grad, at), 0);
        return;
      }
      set(input, at, before + kStep);
      const double above = loss(args);
      set(input, at, before - kStep);
      const double below = loss(args);
      set(input, at, before);
      ASSERT_NEAR((above - below) / (2 * kStep), get(grad, at), 1e-7)
          << kExpertsGradientNames[i] << " at " << at[0] << ", " << at[1] << ", " << at[2];
    });
  }
}

std::vector<ExpertsCase> small_cases() {
  std::vector<ExpertsCase> cases;
  const auto add = [&](std::string name, auto&& change) {
    ExpertsCase c{.name = std::move(name), .tokens = 3, .k = 2, .experts = 3, .hidden = 4, .inter = 3};
    c.weights = DType::f64;
    change(c);
    cases.push_back(std::move(c));
  };
  for (const auto& [activation, name] : kActivations) {
    const ExpertActivation a = activation;
    add(name, [&](ExpertsCase& c) { c.activation = a; });
    add(std::string(name) + "_bias_interleaved_stored",
        [&](ExpertsCase& c) { c.activation = a, c.bias = c.interleaved = c.store = true; });
  }
  add("clamped", [](ExpertsCase& c) {
    c.activation = ExpertActivation::swiglu_oai, c.limit = 0.5, c.bias = c.store = true;
  });
  add("transposed_padded", [](ExpertsCase& c) { c.transposed = c.padded = c.bias = true; });
  add("sentinels", [](ExpertsCase& c) { c.routing = moe::Routing::sentinels, c.tokens = 6, c.store = true; });
  add("repeated", [](ExpertsCase& c) { c.routing = moe::Routing::one, c.bias = true; });
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Small, FusedExpertsDerivative, testing::ValuesIn(small_cases()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace tileformer::test
