// Every case of the table in every dtype on every target: accuracy, guard pages on both sides, and the same
// bits for any number of threads.
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "attention_accuracy.h"
#include "attention_data.h"
#include "attention_runner.h"
#include "case_table_test.h"
#include "ops/attention/case_table.h"
#include "reversed_executor.h"

namespace tileformer::test {
namespace {

class AttentionCases : public CaseTableTest {};

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
    const AttentionResult one_thread = result_of(data.args);
    table_errors().add(target.name + " " + name_of(dtype), rms(one_thread.out, accuracy.exact.out),
                       accuracy.same_precision_error, accuracy.magnitude);
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

INSTANTIATE_TEST_SUITE_P(Table, AttentionCases, in_every_dtype(attention::attention_cases()),
                         name_of_case_and_dtype);
INSTANTIATE_TEST_SUITE_P(Pages, AttentionCases, in_every_dtype(attention::paged_attention_cases()),
                         name_of_case_and_dtype);

}  // namespace
}  // namespace tileformer::test
