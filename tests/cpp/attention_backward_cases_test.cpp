// The gradients of every case of the table in every dtype on every target, from the out and lse that the
// forward produced there: accuracy, guard pages on both sides, and the same bits for any number of threads.
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "attention_backward_accuracy.h"
#include "attention_backward_data.h"
#include "attention_runner.h"
#include "case_table_test.h"
#include "ops/attention/case_table.h"
#include "reversed_executor.h"

namespace tileformer::test {
namespace {

class AttentionBackwardCases : public CaseTableTest {};

TEST_P(AttentionBackwardCases, AccurateAndReproducible) {
  const auto& [c, dtype] = GetParam();
  const AttentionBackwardData data(c, dtype, Edge::end), low(c, dtype, Edge::begin);
  const BackwardAccuracy accuracy(data.args);
  ASSERT_TRUE(accuracy.status) << accuracy.status.message();
  static const std::unique_ptr<Executor> two = make_thread_pool(2), three = make_thread_pool(3);
  ReversedExecutor reversed;

  for (const Target& target : targets_of(dtype)) {
    SCOPED_TRACE(target.name);
    Status status = run_attention(target, data.args.forward);
    ASSERT_TRUE(status) << status.message();
    status = run_backward(target, data.args);
    ASSERT_TRUE(status) << status.message();
    EXPECT_EQ(accuracy.failure(data.args), "");
    const Gradients one_thread = gradients_of(data.args);
    for (int i = 0; i < kGradients; ++i)
      table_errors().add(target.name + " " + name_of(dtype) + " " + kGradientNames[i],
                         rms(one_thread[i], accuracy.exact[i]), accuracy.same_precision_error[i],
                         accuracy.terms[i]);
    EXPECT_TRUE(data.clear_outputs()) << "wrote between the elements of an output";

    status = run_attention(target, low.args.forward);
    ASSERT_TRUE(status) << status.message();
    Executor* const all[] = {two.get(), three.get(), &reversed};
    // Cases with few tasks take turns.
    const bool many_tasks = c.seq_q * c.heads > 256 * c.kv_heads;
    for (std::size_t i = 0; i < (many_tasks ? 3 : 1); ++i) {
      Executor& executor = *all[(i + static_cast<std::size_t>(c.seq_k)) % 3];
      low.clear_gradients();
      status = run_backward(target, low.args, executor, Edge::begin);
      ASSERT_TRUE(status) << status.message();
      const Gradients result = gradients_of(low.args);
      for (int g = 0; g < kGradients; ++g)
        EXPECT_TRUE(same_bits(result[g], one_thread[g]))
            << kGradientNames[g] << ", " << executor.threads() << " threads";
    }
  }
}

// More threads than cores: whoever waits for a task of another must not keep it from running.
TEST(AttentionBackwardThreads, ManyMoreThanCores) {
  const std::unique_ptr<Executor> many = make_thread_pool(16);
  for (const AttentionCase& c : attention::attention_cases()) {
    if (!c.name.starts_with("chunks_")) continue;
    SCOPED_TRACE(c.name);
    const AttentionBackwardData data(c, DType::bf16);
    const Target& target = targets().front();
    ASSERT_TRUE(run_attention(target, data.args.forward));
    ASSERT_TRUE(run_backward(target, data.args));
    const Gradients expected = gradients_of(data.args);
    for (int time = 0; time < 3; ++time) {
      data.clear_gradients();
      ASSERT_TRUE(run_backward(target, data.args, *many));
      const Gradients is = gradients_of(data.args);
      for (int g = 0; g < kGradients; ++g) EXPECT_TRUE(same_bits(is[g], expected[g])) << kGradientNames[g];
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Table, AttentionBackwardCases, in_every_dtype(attention::attention_cases()),
                         name_of_case_and_dtype);

}  // namespace
}  // namespace tileformer::test
