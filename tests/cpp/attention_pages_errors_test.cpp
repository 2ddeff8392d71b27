// Every argument of paged keys that attention refuses, with its message. plan, forward and reference refuse
// alike.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tileformer/attention.h"
#include "valid_attention.h"

namespace tileformer::test {
namespace {

using Refused = RefusedChange<Valid>;

// Pages of 16 keys: two sequences of 20 and 16 keys, in pages 1, 0 and 2 of a pool of 3.
void make_paged(Valid& v) {
  v.ints = {1, 0, 2, -7, 20, 16};
  v.args.key = v.view({3, 2, 16, 8});
  v.args.value = v.view({3, 2, 16, 6});
  v.args.block_table = v.int_view(0, {2, 2});
  v.args.key_lengths = v.int_view(4, {2});
}

void quantize(Valid& v) {
  v.args.key.dtype = v.args.value.dtype = DType::i8;
  v.args.key_scale = v.args.value_scale = v.view({3, 2, 16});
}

std::vector<Refused> pages() {
  return {
      {"table_missing", [](Valid& v) { v.args.block_table = {}; },
       // Without a table the shapes are those of a batch.
       "key: got shape [3, 2, 16, 8], expected [2, 2, 16, 8] [batch, kv_heads, seq_k, dim]"},
      {"lengths_without_table",
       [](Valid& v) {
         v.args.block_table = {}, v.args.key = v.view({2, 2, 5, 8}), v.args.value = v.view({2, 2, 5, 6});
       },
       "block_table: got nothing, expected a tensor, because key_lengths is given"},
      {"scale_without_table",
       [](Valid& v) {
         v.args.block_table = v.args.key_lengths = {};
         v.args.key = v.view({2, 2, 5, 8}), v.args.value = v.view({2, 2, 5, 6});
         v.args.value_scale = v.view({2, 2, 5});
       },
       "value_scale: got a tensor, expected nothing without block_table"},
      {"lengths_missing", [](Valid& v) { v.args.key_lengths = {}; },
       "key_lengths: got nothing, expected a tensor, because block_table is given"},
      {"and_cu_seqlens_key", [](Valid& v) { v.args.cu_seqlens_key = v.int_view(0, {2}); },
       "cu_seqlens_key: got a tensor, expected nothing with block_table"},
      {"key_dtype", [](Valid& v) { v.args.key.dtype = DType::i32; },
       "key: got dtype int32, expected float32, float16, bfloat16, int8, float8_e4m3fn or float8_e5m2 in "
       "pages"},
      {"value_dtype", [](Valid& v) { v.args.value.dtype = DType::f64; },
       "value: got dtype float64, expected float32, float16, bfloat16, int8, float8_e4m3fn or float8_e5m2 in "
       "pages"},
      {"shapes_differ",
       [](Valid& v) {
         v.args.value = v.view({4, 2, 16, 6});
       },
       "value: got shape [4, 2, 16, 6], expected [3, 2, 16, 6] [batch, kv_heads, seq_k, dim_v]"},
      {"scale_missing", [](Valid& v) { quantize(v), v.args.key_scale = {}; },
       "key_scale: got nothing, expected float32 [pages, kv_heads, page_size] with key of int8"},
      {"value_scale_missing", [](Valid& v) { quantize(v), v.args.value_scale = {}; },
       "value_scale: got nothing, expected float32 [pages, kv_heads, page_size] with value of int8"},
      {"scale_not_wanted", [](Valid& v) { quantize(v), v.args.key.dtype = DType::f16; },
       "key_scale: got a tensor, expected nothing with key of float16"},
      {"scale_dtype", [](Valid& v) { quantize(v), v.args.key_scale.dtype = DType::f16; },
       "key_scale: got dtype float16, expected float32"},
      {"scale_shape",
       [](Valid& v) {
         quantize(v), v.args.value_scale = v.view({3, 16, 2});
       },
       "value_scale: got shape [3, 16, 2], expected [3, 2, 16] [pages, kv_heads, page_size]"},
      {"table_rank", [](Valid& v) { v.args.block_table = v.int_view(0, {2}); },
       "block_table: got 1 dimensions [2], expected 2 dimensions [sequences, blocks]"},
      {"lengths_rank",
       [](Valid& v) {
         v.args.key_lengths = v.int_view(4, {2, 1});
       },
       "key_lengths: got 2 dimensions [2, 1], expected 1 dimensions [sequences]"},
      {"table_dtype", [](Valid& v) { v.args.block_table.dtype = DType::i64; },
       "block_table: got dtype int64, expected int32"},
      {"lengths_dtype", [](Valid& v) { v.args.key_lengths.dtype = DType::f32; },
       "key_lengths: got dtype float32, expected int32"},
      {"table_rows",
       [](Valid& v) {
         v.args.block_table = v.int_view(0, {1, 2});
       },
       "block_table: got shape [1, 2], expected 2 rows, one for each sequence"},
      {"lengths_rows", [](Valid& v) { v.args.key_lengths = v.int_view(4, {1}); },
       "key_lengths: got shape [1], expected 2 rows, one for each sequence"},
      {"table_stride", [](Valid& v) { v.args.block_table.stride[1] = 2; },
       "block_table: got stride 2 in the last dimension, expected stride 1"},
      {"of_24",
       [](Valid& v) {
         v.args.key = v.view({3, 2, 24, 8}), v.args.value = v.view({3, 2, 24, 6});
       },
       "key: got pages of 24 keys, expected a multiple of 16"},
      {"of_0",
       [](Valid& v) {
         v.args.key = v.view({3, 2, 0, 8}), v.args.value = v.view({3, 2, 0, 6});
       },
       "key: got pages of 0 keys, expected a multiple of 16"},
      {"length_negative", [](Valid& v) { v.ints[5] = -1; },
       "key_lengths: got [1] = -1, expected 0 to 32, what 2 pages of 16 hold"},
      {"length_too_long", [](Valid& v) { v.ints[4] = 33; },
       "key_lengths: got [0] = 33, expected 0 to 32, what 2 pages of 16 hold"},
      {"table_negative", [](Valid& v) { v.ints[1] = -1; },
       "block_table: got [0, 1] = -1, expected 0 to 2, a page of the pool"},
      {"table_beyond", [](Valid& v) { v.ints[2] = 3; },
       "block_table: got [1, 0] = 3, expected 0 to 2, a page of the pool"},
      {"key_range",
       [](Valid& v) {
         v.ints.insert(v.ints.end(), {0, 20, 0, 17}), v.args.key_range = v.int_view(6, {2, 2});
         v.args.block_table = v.int_view(0, {2, 2}), v.args.key_lengths = v.int_view(4, {2});
       },
       "key_range: got [1] = (0, 17), expected 0 <= first <= second <= 16, the keys of the sequence"},
      {"packed_rows",
       [](Valid& v) {
         v.ints.insert(v.ints.end(), {0, 1, 3, 3});
         for (TensorView* t : {&v.args.query, &v.args.out, &v.args.lse}) t->shape[0] = 1;
         v.args.block_table = v.int_view(0, {2, 2}), v.args.key_lengths = v.int_view(4, {2});
         v.args.cu_seqlens_query = v.int_view(6, {4});
       },
       "block_table: got shape [2, 2], expected 3 rows, one for each sequence"},
  };
}

class AttentionPagesErrors : public testing::TestWithParam<Refused> {};

TEST_P(AttentionPagesErrors, NameTheArgument) {
  Valid v;
  make_paged(v);
  ASSERT_TRUE(attention_reference(v.args));
  GetParam().change(v);
  AttentionPlan plan;
  for (const Status& status :
       {plan_attention(v.args, 1, &plan), attention_forward(v.args, serial_executor()),
        attention_forward(v.args, plan, {}, serial_executor()), attention_reference(v.args)}) {
    EXPECT_EQ(status.message(), GetParam().message);
    EXPECT_EQ(status.code(), GetParam().code);
  }
}

INSTANTIATE_TEST_SUITE_P(Pages, AttentionPagesErrors, testing::ValuesIn(pages()), name_of_refused<Valid>);

// What looks wrong and is not.
TEST(AttentionPagesAccepts, PagesOfAnySizeInATableOfOneColumn) {
  Valid v;
  make_paged(v);
  v.args.key = v.view({3, 2, 21, 8}), v.args.value = v.view({3, 2, 21, 6});
  v.args.block_table = TensorView(v.ints.data(), DType::i32, {2, 1}, {2, 1});
  const Status status = attention_forward(v.args, serial_executor());
  EXPECT_TRUE(status) << status.message();
}

}  // namespace
}  // namespace tileformer::test
