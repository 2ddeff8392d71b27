// What else is in the batch does not change a bit: every sequence of every case, alone as a batch of one.
#include <gtest/gtest.h>

#include <string>
#include <tuple>
#include <vector>

#include "attention_data.h"
#include "attention_runner.h"
#include "attention_visible.h"
#include "exact_attention.h"
#include "ops/attention/case_table.h"

namespace tileformer::test {
namespace {

// Entry `first`, `count` long, of a dimension.
TensorView slice(TensorView view, int dimension, std::int64_t first, std::int64_t count) {
  if (!view) return view;
  if (count != 0) {
    view.data = static_cast<std::uint8_t*>(view.data) +
                first * view.stride[dimension] * static_cast<std::int64_t>(size_of(view.dtype));
  }
  view.shape[dimension] = count;
  return view;
}

// A mask repeats along a dimension of size 1 and may be longer than the sequence.
TensorView slice_mask(const TensorView& mask, int dimension, std::int64_t first, std::int64_t count) {
  return !mask || mask.shape[dimension] == 1 ? mask : slice(mask, dimension, first, count);
}

AttentionArgs alone(const AttentionArgs& args, std::int64_t n) {
  AttentionArgs one = args;
  const Span queries = queries_of(args, n), keys = keys_of(args, n);
  const std::int64_t batch = args.cu_seqlens_query ? 0 : n;
  const auto rows = [&](const TensorView& view, const Span& span) {
    return slice(slice(view, 0, batch, 1), 2, span.first, span.count);
  };
  one.query = rows(args.query, queries);
  one.key = rows(args.key, keys);
  one.value = rows(args.value, keys);
  one.out = rows(args.out, queries);
  one.lse = rows(args.lse, queries);
  one.attn_mask =
      slice_mask(slice_mask(slice_mask(args.attn_mask, 0, n, 1), 2, 0, queries.count), 3, 0, keys.count);
  if (args.alibi_slopes.rank == 2) one.alibi_slopes = slice(args.alibi_slopes, 0, n, 1);
  one.key_range = slice(args.key_range, 0, n, 1);
  one.query_offset = slice(args.query_offset, 0, n, 1);
  one.cu_seqlens_query = one.cu_seqlens_key = TensorView();
  return one;
}

class AttentionBatch : public testing::TestWithParam<std::tuple<AttentionCase, DType>> {};

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

// Dropout is left out: its bits belong to the place in the batch.
std::vector<AttentionCase> cases_with_batches() {
  std::vector<AttentionCase> chosen;
  for (const AttentionCase& c : attention::attention_cases()) {
    if (c.sequences() > 1 && c.dropout_p == 0) chosen.push_back(c);
  }
  return chosen;
}

INSTANTIATE_TEST_SUITE_P(Table, AttentionBatch,
                         testing::Combine(testing::ValuesIn(cases_with_batches()),
                                          testing::Values(DType::f32, DType::f16, DType::bf16)),
                         [](const auto& info) {
                           return std::get<0>(info.param).name + "_" + name_of(std::get<1>(info.param));
                         });

}  // namespace
}  // namespace tileformer::test
