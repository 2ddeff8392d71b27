// What the bits of the gradients do not depend on: how an expert's pairs are cut into waves, which gradients
// are wanted, and whether grad_out repeats itself by strides of 0.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "fused_experts_data.h"
#include "fused_experts_runner.h"
#include "guarded_memory.h"

namespace tileformer::test {
namespace {

using Gradients = std::vector<std::vector<double>>;

Gradients gradients_of(const FusedExpertsBackwardArgs& args) {
  Gradients all;
  for (int i = 0; i < kExpertsGradients; ++i) all.push_back(elements_of(gradient_view(args, i)));
  return all;
}

TensorView& gradient(FusedExpertsBackwardArgs& args, int i) {
  return const_cast<TensorView&>(gradient_view(args, i));
}

std::vector<ExpertsCase> wave_cases() {
  return {
      {.name = "one_expert", .tokens = 1100, .k = 1, .experts = 1, .hidden = 40, .inter = 26, .bias = true},
      {.name = "few_experts",
       .tokens = 700,
       .k = 2,
       .experts = 3,
       .hidden = 33,
       .inter = 13,
       .activation = ExpertActivation::swiglu_oai,
       .interleaved = true,
       .transposed = true,
       .bias = true},
      {.name = "uneven",
       .tokens = 900,
       .k = 1,
       .experts = 5,
       .hidden = 24,
       .inter = 24,
       .routing = Routing::few}};
}

class FusedExpertsBackwardWaves : public testing::TestWithParam<std::tuple<ExpertsCase, DType>> {};

// Each share of an expert is as small as shares get.
TEST_P(FusedExpertsBackwardWaves, BitsDoNotDependOnWaves) {
  const auto& [c, dtype] = GetParam();
  const ExpertsBackwardData data(c, dtype);
  const FusedExpertsBackwardArgs& args = data.backward;
  static const std::unique_ptr<Executor> three = make_thread_pool(3);
  for (const ExpertsTarget& target : experts_targets(dtype)) {
    SCOPED_TRACE(target.name);
    const ForcedUnit<moe::Unit> forced(target);
    FusedExpertsBackwardPlan plan;
    ASSERT_TRUE(plan_fused_experts_backward(args, 3, &plan));
    std::vector<char> workspace(2 * plan.workspace_bytes + (std::size_t{16} << 20));
    ASSERT_TRUE(fused_experts_backward(args, plan, {workspace.data(), workspace.size()}, serial_executor()));
    const Gradients whole = gradients_of(args);

    const moe::Unit* unit = nullptr;
    ASSERT_TRUE(moe::units().choose(dtype, &unit));
    const std::int64_t least = std::int64_t{unit->lanes} * moe::backward_kernel_of(*unit).sum_groups;
    ASSERT_LT(least, plan.wave_pairs);
    for (std::int64_t pairs = least; pairs < plan.wave_pairs && pairs <= 3 * least; pairs += least) {
      plan.wave_pairs = pairs;
      data.clear_outputs();
      ASSERT_TRUE(fused_experts_backward(args, plan, {workspace.data(), workspace.size()}, *three));
      const Gradients cut = gradients_of(args);
      for (int i = 0; i < kExpertsGradients; ++i)
        EXPECT_TRUE(same_bits(cut[i], whole[i])) << kExpertsGradientNames[i] << ", waves of " << pairs;
    }
  }
}

TEST_P(FusedExpertsBackwardWaves, BitsDoNotDependOnWhatElseIsWanted) {
  const auto& [c, dtype] = GetParam();
  const ExpertsBackwardData data(c, dtype);
  for (const ExpertsTarget& target : experts_targets(dtype)) {
    SCOPED_TRACE(target.name);
    ASSERT_TRUE(run_experts_backward(target, data.backward));
    const Gradients all = gradients_of(data.backward);
    for (int wanted = 0; wanted < kExpertsGradients; ++wanted) {
      if (!gradient_view(data.backward, wanted)) continue;
      FusedExpertsBackwardArgs one = data.backward;
      for (int i = 0; i < kExpertsGradients; ++i)
        if (i != wanted) gradient(one, i) = {};
      data.clear_outputs();
      ASSERT_TRUE(run_experts_backward(target, one));
      const Gradients after = gradients_of(data.backward);
      EXPECT_TRUE(same_bits(after[wanted], all[wanted])) << kExpertsGradientNames[wanted] << " alone";
    }
  }
}

TEST_P(FusedExpertsBackwardWaves, GradOutMayRepeat) {
  const auto& [c, dtype] = GetParam();
  const ExpertsBackwardData data(c, dtype);
  for (const bool one_row : {false, true}) {
    // As a whole tensor, then by strides.
    FusedExpertsBackwardArgs args = data.backward;
    const TensorView& dense = args.grad_out;
    for (std::int64_t t = 0; t < c.tokens; ++t)
      for (std::int64_t d = 0; d < c.hidden; ++d)
        set(dense, {t, d}, one_row ? 0.75 : 0.25 * double(t % 5 - 2));
    FusedExpertsBackwardArgs repeated = args;
    repeated.grad_out.stride[1] = 0;
    if (one_row) repeated.grad_out.stride[0] = 0;
    for (const ExpertsTarget& target : experts_targets(dtype)) {
      SCOPED_TRACE(target.name);
      ASSERT_TRUE(run_experts_backward(target, args));
      const Gradients expected = gradients_of(args);
      data.clear_outputs();
      ASSERT_TRUE(run_experts_backward(target, repeated));
      const Gradients gradients = gradients_of(args);
      for (int i = 0; i < kExpertsGradients; ++i)
        EXPECT_TRUE(same_bits(gradients[i], expected[i])) << kExpertsGradientNames[i];
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, FusedExpertsBackwardWaves,
                         testing::Combine(testing::ValuesIn(wave_cases()),
                                          testing::Values(DType::f32, DType::f16, DType::bf16)),
                         [](const auto& info) {
                           return std::get<0>(info.param).name + "_" + name_of(std::get<1>(info.param));
                         });

}  // namespace
}  // namespace tileformer::test
