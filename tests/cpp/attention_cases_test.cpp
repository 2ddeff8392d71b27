// Every case of the table in every dtype on every target: accuracy, guard pages on both sides, and the same
// bits for any number of threads.
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <memory>
#include <string>
#include <tuple>

#include "attention_accuracy.h"
#include "attention_data.h"
#include "attention_runner.h"
#include "ops/attention/case_table.h"

namespace tileformer::test {
namespace {

// Workers one after the other, the last first: as legal as any schedule.
class ReversedExecutor : public Executor {
 public:
  int threads() const override { return 3; }
  void run(int workers, void (*body)(void* context, int worker), void* context) override {
    for (int worker = workers - 1; worker >= 0; --worker) body(context, worker);
  }
};

// Sums of squared errors relative to the output, over the cases of the table.
struct TableError {
  double target = 0, same_precision = 0;
};

class AttentionCases : public testing::TestWithParam<std::tuple<AttentionCase, DType>> {
 protected:
  static void add_to_table(const std::string& key, const Accuracy& accuracy, const AttentionArgs& args) {
    if (accuracy.magnitude == 0) return;
    const auto squared = [&](double error) {
      return error * error / (accuracy.magnitude * accuracy.magnitude);
    };
    table_errors()[key].target += squared(rms(result_of(args).out, accuracy.exact.out));
    table_errors()[key].same_precision += squared(accuracy.same_precision_error);
  }

  static void TearDownTestSuite() {
    for (const auto& [key, error] : table_errors()) {
      EXPECT_LE(std::sqrt(error.target), kTableFactor * std::sqrt(error.same_precision)) << key;
    }
  }

 private:
  static std::map<std::string, TableError>& table_errors() {
    static std::map<std::string, TableError> errors;
    return errors;
  }
};

TEST_P(AttentionCases, AccurateAndReproducible) {
  const auto& [c, dtype] = GetParam();
  const AttentionData data(c, dtype, Edge::end), low(c, dtype, Edge::begin);
  const Accuracy accuracy(data.args);
  ASSERT_TRUE(accuracy.status) << accuracy.status.message();
  static const std::unique_ptr<Executor> two = make_thread_pool(2), three = make_thread_pool(3);
  ReversedExecutor reversed;

  for (const Target& target : targets()) {
    SCOPED_TRACE(target.name);
    Status status = run_attention(target, data.args);
    ASSERT_TRUE(status) << status.message();
    EXPECT_EQ(accuracy.failure(data.args), "");
    add_to_table(target.name + " " + name_of(dtype), accuracy, data.args);
    const AttentionResult one_thread = result_of(data.args);
    EXPECT_TRUE(data.clear_outputs()) << "wrote between the elements of out or lse";

    for (Executor* executor : {two.get(), three.get(), static_cast<Executor*>(&reversed)}) {
      status = run_attention(target, low.args, *executor, Edge::begin);
      ASSERT_TRUE(status) << status.message();
      const AttentionResult result = result_of(low.args);
      low.clear_outputs();
      EXPECT_TRUE(same_bits(result.out, one_thread.out)) << executor->threads() << " threads";
      EXPECT_TRUE(same_bits(result.lse, one_thread.lse)) << executor->threads() << " threads";
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Table, AttentionCases,
                         testing::Combine(testing::ValuesIn(attention::attention_cases()),
                                          testing::Values(DType::f32, DType::f16, DType::bf16)),
                         [](const auto& info) {
                           return std::get<0>(info.param).name + "_" + name_of(std::get<1>(info.param));
                         });

}  // namespace
}  // namespace tileformer::test
