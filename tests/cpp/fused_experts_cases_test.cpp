// Every case of the table in every dtype on every target: accuracy, guard pages on both sides, and the same
// bits for any number of threads.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <tuple>

#include "fused_experts_accuracy.h"
#include "fused_experts_runner.h"
#include "reversed_executor.h"

namespace tileformer::test {
namespace {

class FusedExpertsCases : public testing::TestWithParam<std::tuple<ExpertsCase, DType>> {
 protected:
  static TableErrors& table_errors() {
    static TableErrors errors;
    return errors;
  }
  static void TearDownTestSuite() { EXPECT_EQ(table_errors().failure(), ""); }
};

TEST_P(FusedExpertsCases, AccurateAndReproducible) {
  const auto& [c, dtype] = GetParam();
  const ExpertsData data(c, dtype, Edge::end), low(c, dtype, Edge::begin);
  const ExpertsAccuracy accuracy(data.args);
  ASSERT_TRUE(accuracy.status) << accuracy.status.message();
  static const std::unique_ptr<Executor> three = make_thread_pool(3);
  ReversedExecutor reversed;

  for (const ExpertsTarget& target : experts_targets(dtype)) {
    SCOPED_TRACE(target.name);
    Status status = run_experts(target, data.args);
    ASSERT_TRUE(status) << status.message();
    EXPECT_EQ(accuracy.failure(data.args), "");
    const std::vector<double> out = elements_of(data.args.out), stored = elements_of(data.args.gate_up_out);
    table_errors().add(target.name + " " + name_of(dtype), rms(out, accuracy.out.exact),
                       accuracy.out.same_precision_error, accuracy.out.magnitude);
    EXPECT_TRUE(data.clear_outputs()) << "wrote between the elements of an output";

    for (Executor* executor : {three.get(), static_cast<Executor*>(&reversed)}) {
      status = run_experts(target, low.args, *executor, Edge::begin);
      ASSERT_TRUE(status) << status.message();
      EXPECT_TRUE(same_bits(elements_of(low.args.out), out));
      EXPECT_TRUE(same_bits(elements_of(low.args.gate_up_out), stored));
      EXPECT_TRUE(low.clear_outputs()) << "wrote between the elements of an output";
    }
  }
}

std::string name_of_experts_case(const testing::TestParamInfo<std::tuple<ExpertsCase, DType>>& info) {
  return std::get<0>(info.param).name + "_" + name_of(std::get<1>(info.param));
}

INSTANTIATE_TEST_SUITE_P(Table, FusedExpertsCases,
                         testing::Combine(testing::ValuesIn(moe::experts_cases()),
                                          testing::Values(DType::f32, DType::f16, DType::bf16)),
                         name_of_experts_case);

}  // namespace
}  // namespace tileformer::test
