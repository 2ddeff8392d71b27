// The gradients of every case of the table without codes, in every dtype on every target, from a stored
// gate_up and from one computed again: accuracy, guard pages, and the same bits for any number of threads.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <tuple>

#include "fused_experts_accuracy.h"
#include "fused_experts_runner.h"
#include "reversed_executor.h"

namespace tileformer::test {
namespace {

class FusedExpertsBackwardCases : public testing::TestWithParam<std::tuple<ExpertsCase, DType>> {
 protected:
  static TableErrors& table_errors() {
    static TableErrors errors;
    return errors;
  }
  static void TearDownTestSuite() { EXPECT_EQ(table_errors().failure(), ""); }
};

std::vector<std::vector<double>> gradients_of(const FusedExpertsBackwardArgs& args) {
  std::vector<std::vector<double>> all;
  for (int i = 0; i < kExpertsGradients; ++i) all.push_back(elements_of(gradient_view(args, i)));
  return all;
}

TEST_P(FusedExpertsBackwardCases, AccurateAndReproducible) {
  const auto& [c, dtype] = GetParam();
  const bool wide = c.hidden % 2 == 0;  // weight gradients in fp32
  const ExpertsBackwardData data(c, dtype, Edge::end, 1, wide), low(c, dtype, Edge::begin, 1, wide);
  if (c.store) {  // any gate_up will do, the same one for all targets
    ASSERT_TRUE(fused_experts_reference(data.args));
    ASSERT_TRUE(fused_experts_reference(low.args));
  }
  const ExpertsBackwardAccuracy accuracy(data.backward);
  ASSERT_TRUE(accuracy.status) << accuracy.status.message();
  static const std::unique_ptr<Executor> three = make_thread_pool(3);
  ReversedExecutor reversed;

  for (const ExpertsTarget& target : experts_targets(dtype)) {
    SCOPED_TRACE(target.name);
    Status status = run_experts_backward(target, data.backward);
    ASSERT_TRUE(status) << status.message();
    EXPECT_EQ(accuracy.failure(data.backward), "");
    const auto one_thread = gradients_of(data.backward);
    for (int i = 0; i < kExpertsGradients; ++i) {
      const ExpertsBound& g = accuracy.gradients[i];
      table_errors().add(target.name + " " + name_of(dtype) + " " + kExpertsGradientNames[i],
                         rms(one_thread[i], g.exact), g.same_precision_error, g.magnitude);
    }
    for (Executor* executor : {three.get(), static_cast<Executor*>(&reversed)}) {
      status = run_experts_backward(target, low.backward, *executor, Edge::begin);
      ASSERT_TRUE(status) << status.message();
      const auto gradients = gradients_of(low.backward);
      for (int i = 0; i < kExpertsGradients; ++i)
        EXPECT_TRUE(same_bits(gradients[i], one_thread[i])) << kExpertsGradientNames[i];
    }
  }
  EXPECT_TRUE(data.clear_outputs()) << "wrote between the elements of an output";
  EXPECT_TRUE(low.clear_outputs()) << "wrote between the elements of an output";
}

std::vector<ExpertsCase> differentiable_cases() {
  std::vector<ExpertsCase> cases = moe::experts_cases();
  std::erase_if(cases, [](const ExpertsCase& c) { return c.codes.has_value(); });
  return cases;
}

std::string name_of_experts_case(const testing::TestParamInfo<std::tuple<ExpertsCase, DType>>& info) {
  return std::get<0>(info.param).name + "_" + name_of(std::get<1>(info.param));
}

INSTANTIATE_TEST_SUITE_P(Table, FusedExpertsBackwardCases,
                         testing::Combine(testing::ValuesIn(differentiable_cases()),
                                          testing::Values(DType::f32, DType::f16, DType::bf16)),
                         name_of_experts_case);

}  // namespace
}  // namespace tileformer::test
