// What else is in the batch does not change a bit: every sequence of every case, alone as a batch of one.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "attention_alone.h"
#include "attention_data.h"
#include "attention_runner.h"
#include "case_params.h"
#include "exact_attention.h"
#include "ops/attention/case_table.h"

namespace tileformer::test {
namespace {

class AttentionBatch : public testing::TestWithParam<CaseAndDType> {};

TEST_P(AttentionBatch, SameBitsAlone) {
  const auto& [c, dtype] = GetParam();
  const AttentionData data(c, dtype);
  for (const Target& target : targets()) {
    SCOPED_TRACE(target.name);
    Status status = run_attention(target, data.args);
    ASSERT_TRUE(status) << status.message();
    for (std::int64_t n = 0; n < c.sequences(); ++n) {
      const AttentionArgs one = alone(data.args, n);
      const AttentionResult in_batch = result_of(one);
      status = run_attention(target, one);
      ASSERT_TRUE(status) << status.message();
      const AttentionResult by_itself = result_of(one);
      EXPECT_TRUE(same_bits(in_batch.out, by_itself.out)) << "sequence " << n;
      EXPECT_TRUE(same_bits(in_batch.lse, by_itself.lse)) << "sequence " << n;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Table, AttentionBatch, in_every_dtype(cases_with_batches()), name_of_case_and_dtype);
INSTANTIATE_TEST_SUITE_P(Pages, AttentionBatch,
                         in_every_dtype(cases_with_batches(attention::paged_attention_cases())),
                         name_of_case_and_dtype);

}  // namespace
}  // namespace tileformer::test
