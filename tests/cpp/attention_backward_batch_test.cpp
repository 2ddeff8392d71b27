// What else is computed does not change a bit of a gradient: neither the other sequences of the batch, nor
// the other gradients.
#include <gtest/gtest.h>

#include <string>

#include "attention_alone.h"
#include "attention_backward_data.h"
#include "attention_runner.h"
#include "case_params.h"
#include "ops/attention/case_table.h"

namespace tileformer::test {
namespace {

void expect_same_bits(const Gradients& a, const Gradients& b, const std::string& what) {
  for (int i = 0; i < kGradients; ++i)
    EXPECT_TRUE(same_bits(a[i], b[i])) << kGradientNames[i] << ", " << what;
}

class AttentionBackwardBatch : public testing::TestWithParam<CaseAndDType> {};

TEST_P(AttentionBackwardBatch, SameBitsAlone) {
  const auto& [c, dtype] = GetParam();
  const AttentionBackwardData data(c, dtype);
  for (const Target& target : targets_of(dtype)) {
    SCOPED_TRACE(target.name);
    ASSERT_TRUE(run_attention(target, data.args.forward));
    for (std::int64_t n = 0; n < c.sequences(); ++n) {
      const AttentionBackwardArgs one = alone(data.args, n);
      data.clear_gradients();
      Status status = run_backward(target, data.args);
      ASSERT_TRUE(status) << status.message();
      const Gradients in_batch = gradients_of(one);
      data.clear_gradients();
      status = run_backward(target, one);
      ASSERT_TRUE(status) << status.message();
      expect_same_bits(gradients_of(one), in_batch, "sequence " + std::to_string(n));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Table, AttentionBackwardBatch, in_every_dtype(cases_with_batches()),
                         name_of_case_and_dtype);

class AttentionBackwardWanted : public testing::TestWithParam<CaseAndDType> {};

TEST_P(AttentionBackwardWanted, SameBitsWithoutTheOthers) {
  const auto& [c, dtype] = GetParam();
  const AttentionBackwardData data(c, dtype);
  for (const Target& target : targets_of(dtype)) {
    SCOPED_TRACE(target.name);
    ASSERT_TRUE(run_attention(target, data.args.forward));
    ASSERT_TRUE(run_backward(target, data.args));
    const Gradients all = gradients_of(data.args);
    const auto expect_same = [&](const char* what, auto wanted) {
      AttentionBackwardArgs some = data.args;
      Gradients expected = all;
      for (int i = 0; i < kGradients; ++i) {
        if (wanted(i)) continue;
        gradient_view(some, i) = TensorView();
        expected[i].clear();
      }
      data.clear_gradients();
      const Status status = run_backward(target, some);
      ASSERT_TRUE(status) << status.message();
      expect_same_bits(gradients_of(some), expected, what);
    };
    for (int i = 0; i < kGradients; ++i) {
      if (!gradient_view(data.args, i)) continue;
      expect_same((std::string("without ") + kGradientNames[i]).c_str(), [&](int g) { return g != i; });
    }
    const int only = static_cast<int>(c.seq_k % 3);
    expect_same("alone", [&](int g) { return g == only; });
  }
}

// Every feature, few sizes.
std::vector<AttentionCase> cases_with_features() {
  std::vector<AttentionCase> chosen;
  for (const AttentionCase& c : attention::attention_cases()) {
    const bool of_sizes_only = c.name.starts_with("tail_") || c.name.starts_with("dim");
    if (!of_sizes_only && c.dim <= 256) chosen.push_back(c);
  }
  return chosen;
}

INSTANTIATE_TEST_SUITE_P(Table, AttentionBackwardWanted,
                         testing::Combine(testing::ValuesIn(cases_with_features()),
                                          testing::Values(DType::f32, DType::bf16)),
                         name_of_case_and_dtype);

}  // namespace
}  // namespace tileformer::test
