// Every argument that attention refuses, with its message: the argument, what was given, what is allowed.
// plan, forward and reference refuse alike.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "tileformer/attention.h"
#include "valid_attention.h"

namespace tileformer::test {
namespace {

using Refused = RefusedChange<Valid>;

constexpr std::int64_t kHuge = std::int64_t{1} << 62;
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

std::vector<Refused> tensors() {
  return {
      {"query_missing", [](Valid& v) { v.args.query = {}; },
       "query: got nothing, expected a tensor [batch, heads, seq_q, dim]"},
      {"out_missing", [](Valid& v) { v.args.out = {}; },
       "out: got nothing, expected a tensor [batch, heads, seq_q, dim_v]"},
      {"query_rank",
       [](Valid& v) {
         v.args.query = v.view({2, 3, 8});
       },
       "query: got 3 dimensions [2, 3, 8], expected 4 dimensions [batch, heads, seq_q, dim]"},
      {"rank_out_of_range", [](Valid& v) { v.args.key.rank = 9; },
       "key: got 9 dimensions, expected 4 dimensions [batch, kv_heads, seq_k, dim]"},
      {"query_dtype", [](Valid& v) { v.args.query.dtype = DType::i32; },
       "query: got dtype int32, expected float32, float16, bfloat16 or float64"},
      {"key_dtype", [](Valid& v) { v.args.key.dtype = DType::f16; },
       "key: got dtype float16, expected float32, the dtype of query"},
      {"value_dtype", [](Valid& v) { v.args.value.dtype = DType::bf16; },
       "value: got dtype bfloat16, expected float32, the dtype of query"},
      {"out_dtype", [](Valid& v) { v.args.out.dtype = DType::f64; },
       "out: got dtype float64, expected float32, the dtype of query"},
      {"lse_dtype", [](Valid& v) { v.args.lse.dtype = DType::bf16; },
       "lse: got dtype bfloat16, expected float32 with a query of float32"},
      {"head_dim_0",
       [](Valid& v) {
         v.args.query = v.view({2, 4, 3, 0});
       },
       "query: got head_dim 0, expected 1 to 576"},
      {"head_dim_577",
       [](Valid& v) {
         v.args.query = v.view({1, 1, 1, 577});
       },
       "query: got head_dim 577, expected 1 to 576", StatusCode::unsupported},
      {"value_head_dim_577",
       [](Valid& v) {
         v.args.value = v.view({1, 1, 1, 577});
       },
       "value: got head_dim 577, expected 1 to 576", StatusCode::unsupported},
      {"key_dim",
       [](Valid& v) {
         v.args.key = v.view({2, 2, 5, 7});
       },
       "key: got shape [2, 2, 5, 7], expected [2, 2, 5, 8] [batch, kv_heads, seq_k, dim]"},
      {"key_batch",
       [](Valid& v) {
         v.args.key = v.view({1, 2, 5, 8});
       },
       "key: got shape [1, 2, 5, 8], expected [2, 2, 5, 8] [batch, kv_heads, seq_k, dim]"},
      {"value_heads",
       [](Valid& v) {
         v.args.value = v.view({2, 1, 5, 6});
       },
       "value: got shape [2, 1, 5, 6], expected [2, 2, 5, 6] [batch, kv_heads, seq_k, dim_v]"},
      {"value_seq",
       [](Valid& v) {
         v.args.value = v.view({2, 2, 4, 6});
       },
       "value: got shape [2, 2, 4, 6], expected [2, 2, 5, 6] [batch, kv_heads, seq_k, dim_v]"},
      {"out_shape",
       [](Valid& v) {
         v.args.out = v.view({2, 4, 3, 8});
       },
       "out: got shape [2, 4, 3, 8], expected [2, 4, 3, 6] [batch, heads, seq_q, dim_v]"},
      {"lse_shape",
       [](Valid& v) {
         v.args.lse = v.view({2, 3, 4});
       },
       "lse: got shape [2, 3, 4], expected [2, 4, 3] [batch, heads, seq_q]"},
      {"heads_do_not_divide",
       [](Valid& v) {
         v.args.key = v.view({2, 3, 5, 8}), v.args.value = v.view({2, 3, 5, 6});
       },
       "key: got 3 kv_heads for 4 heads of query, expected kv_heads that divide heads"},
      {"no_kv_heads",
       [](Valid& v) {
         v.args.key = v.view({2, 0, 5, 8}), v.args.value = v.view({2, 0, 5, 6});
       },
       "key: got 0 kv_heads for 4 heads of query, expected kv_heads that divide heads"},
      {"query_stride", [](Valid& v) { v.args.query.stride[3] = 2; },
       "query: got stride 2 in the last dimension, expected stride 1"},
      {"value_stride", [](Valid& v) { v.args.value.stride[3] = 0; },
       "value: got stride 0 in the last dimension, expected stride 1"},
      {"out_overlaps_itself", [](Valid& v) { v.args.out.stride[1] = 0; },
       "out: got stride 0 in dimension 1 of shape [2, 4, 3, 6], expected an output whose elements have "
       "addresses of "
       "their own"},
      {"lse_overlaps_itself", [](Valid& v) { v.args.lse.stride[2] = 0; },
       "lse: got stride 0 in dimension 2 of shape [2, 4, 3], expected an output whose elements have "
       "addresses of "
       "their own"},
      {"negative_size", [](Valid& v) { v.args.query.shape[2] = -3; },
       "query: got shape [2, 4, -3, 8], expected sizes of at least 0"},
      {"null_data", [](Valid& v) { v.args.key.data = nullptr; },
       "key: got a null pointer for shape [2, 2, 5, 8], expected memory for every element"},
      {"misaligned", [](Valid& v) { v.args.key.data = reinterpret_cast<char*>(v.zeros.data()) + 1; },
       "key: got a pointer that is not aligned to its elements, expected alignment to 4 bytes for float32"},
      {"too_many_elements",
       [](Valid& v) {
         v.args.query = TensorView(v.zeros.data(), DType::f32, {kHuge, 4, 3, 8}, {0, 8, 8, 1});
       },
       "query: got shape [4611686018427387904, 4, 3, 8] with strides that reach beyond 64-bit offsets, "
       "expected a "
       "tensor whose byte offsets fit in 64 bits"},
      {"stride_overflow", [](Valid& v) { v.args.query.stride[0] = kHuge; },
       "query: got shape [2, 4, 3, 8] with strides that reach beyond 64-bit offsets, expected a tensor whose "
       "byte "
       "offsets fit in 64 bits"},
      {"negative_stride_overflow",
       [](Valid& v) { v.args.query.stride[0] = std::numeric_limits<std::int64_t>::min(); },
       "query: got shape [2, 4, 3, 8] with strides that reach beyond 64-bit offsets, expected a tensor whose "
       "byte "
       "offsets fit in 64 bits"},
      {"sequence_too_long",
       [](Valid& v) {
         v.args.key = TensorView(v.zeros.data(), DType::f32, {2, 2, std::int64_t{1} << 31, 8}, {0, 0, 0, 1});
         v.args.value =
             TensorView(v.zeros.data(), DType::f32, {2, 2, std::int64_t{1} << 31, 6}, {0, 0, 0, 1});
       },
       "key: got a sequence of length 2147483648, expected at most 2147418111", StatusCode::unsupported},
  };
}

std::vector<Refused> biases() {
  return {
      {"mask_rank",
       [](Valid& v) {
         v.args.attn_mask = v.view({3, 5});
       },
       "attn_mask: got 2 dimensions [3, 5], expected 4 dimensions [batch|1, heads|1, seq_q|1, seq_k|1]"},
      {"mask_dtype",
       [](Valid& v) {
         v.args.attn_mask = v.view({1, 1, 3, 5}, DType::i32);
       },
       "attn_mask: got dtype int32, expected bool (true: attend) or a floating dtype (added to the scores)"},
      {"mask_shape",
       [](Valid& v) {
         v.args.attn_mask = v.view({1, 1, 3, 4}, DType::boolean);
       },
       "attn_mask: got shape [1, 1, 3, 4], expected [2, 4, 3, 5] [batch, heads, seq_q, seq_k], or 1 in any "
       "dimension"},
      {"mask_of_kv_heads",
       [](Valid& v) {
         v.args.attn_mask = v.view({2, 2, 3, 5});
       },
       "attn_mask: got shape [2, 2, 3, 5], expected [2, 4, 3, 5] [batch, heads, seq_q, seq_k], or 1 in any "
       "dimension"},
      {"mask_null",
       [](Valid& v) {
         v.args.attn_mask = TensorView::dense(nullptr, DType::boolean, {1, 1, 3, 5});
       },
       "attn_mask: got a null pointer for shape [1, 1, 3, 5], expected memory for every element"},
      {"packed_mask_too_short",
       [](Valid& v) {
         v.pack(), v.args.attn_mask = v.view({2, 1, 2, 2});
       },
       "attn_mask: got shape [2, 1, 2, 2], expected [2, 4, 2, 3] [sequences, heads, longest seq_q, longest "
       "seq_k], or 1 "
       "in any dimension"},
      {"alibi_dtype", [](Valid& v) { v.args.alibi_slopes = v.view({4}, DType::bf16); },
       "alibi_slopes: got dtype bfloat16, expected float32"},
      {"alibi_heads", [](Valid& v) { v.args.alibi_slopes = v.view({2}); },
       "alibi_slopes: got shape [2], expected [4] or [2, 4]"},
      {"alibi_batch",
       [](Valid& v) {
         v.args.alibi_slopes = v.view({1, 4});
       },
       "alibi_slopes: got shape [1, 4], expected [4] or [2, 4]"},
      {"alibi_rank",
       [](Valid& v) {
         v.args.alibi_slopes = v.view({2, 4, 1});
       },
       "alibi_slopes: got 3 dimensions [2, 4, 1], expected 2 dimensions [heads] or [batch, heads]"},
      {"sinks_dtype", [](Valid& v) { v.args.sinks = v.view({4}, DType::i64); },
       "sinks: got dtype int64, expected a floating dtype"},
      {"sinks_shape", [](Valid& v) { v.args.sinks = v.view({3}); },
       "sinks: got shape [3], expected [4], one logit per head"},
  };
}

std::vector<Refused> sequences() {
  return {
      {"cu_seqlens_query_alone", [](Valid& v) { v.pack(), v.args.cu_seqlens_key = {}; },
       "cu_seqlens_key: got nothing, expected a tensor, because cu_seqlens_query is given"},
      {"cu_seqlens_key_alone", [](Valid& v) { v.pack(), v.args.cu_seqlens_query = {}; },
       "cu_seqlens_query: got nothing, expected a tensor, because cu_seqlens_key is given"},
      {"packed_batch",
       [](Valid& v) {
         v.args.cu_seqlens_query = v.int_view(0, {3}), v.args.cu_seqlens_key = v.int_view(3, {3});
       },
       "query: got batch 2, expected batch 1 with cu_seqlens"},
      {"cu_seqlens_dtype", [](Valid& v) { v.pack(), v.args.cu_seqlens_key.dtype = DType::f32; },
       "cu_seqlens_key: got dtype float32, expected int32 or int64"},
      {"cu_seqlens_rank",
       [](Valid& v) {
         v.pack(), v.args.cu_seqlens_key = v.int_view(0, {1, 3});
       },
       "cu_seqlens_key: got 2 dimensions [1, 3], expected 1 dimensions [sequences + 1]"},
      {"cu_seqlens_empty", [](Valid& v) { v.pack(), v.args.cu_seqlens_query = v.int_view(0, {0}); },
       "cu_seqlens_query: got no entry, expected [sequences + 1] entries, the first of them 0"},
      {"cu_seqlens_first", [](Valid& v) { v.pack(), v.args.cu_seqlens_query = v.int_view(1, {2}); },
       "cu_seqlens_query: got [0] = 1, expected 0"},
      {"cu_seqlens_decrease", [](Valid& v) { v.pack(), v.args.cu_seqlens_query = v.int_view(6, {4}); },
       "cu_seqlens_query: got [2] = 2 after 4, expected offsets that never decrease"},
      {"cu_seqlens_end", [](Valid& v) { v.pack(), v.args.cu_seqlens_query = v.int_view(0, {2}); },
       "cu_seqlens_query: got [1] = 1 at the end, expected seq_q = 3"},
      {"cu_seqlens_beyond_the_end", [](Valid& v) { v.pack(), v.ints[5] = 6; },
       "cu_seqlens_key: got [2] = 6 at the end, expected seq_k = 5"},
      {"cu_seqlens_lengths",
       [](Valid& v) {
         v.pack(), v.ints = {0, 1, 3, 0, 5}, v.args.cu_seqlens_query = v.int_view(0, {3}),
                   v.args.cu_seqlens_key = v.int_view(3, {2});
       },
       "cu_seqlens_key: got 2 entries, expected 3, as many as cu_seqlens_query has"},
      {"key_range_shape",
       [](Valid& v) {
         v.args.key_range = v.int_view(0, {1, 2});
       },
       "key_range: got shape [1, 2], expected [2, 2], first and last + 1 key of each sequence"},
      {"key_range_dtype",
       [](Valid& v) {
         v.args.key_range = v.view({2, 2}, DType::i64);
       },
       "key_range: got dtype int64, expected int32 [2, 2]"},
      {"key_range_beyond",
       [](Valid& v) {
         v.ints = {0, 5, 1, 6}, v.args.key_range = v.int_view(0, {2, 2});
       },
       "key_range: got [1] = (1, 6), expected 0 <= first <= second <= 5, the keys of the sequence"},
      {"key_range_negative",
       [](Valid& v) {
         v.ints = {-1, 5, 1, 5}, v.args.key_range = v.int_view(0, {2, 2});
       },
       "key_range: got [0] = (-1, 5), expected 0 <= first <= second <= 5, the keys of the sequence"},
      {"key_range_reversed",
       [](Valid& v) {
         v.ints = {0, 5, 4, 3}, v.args.key_range = v.int_view(0, {2, 2});
       },
       "key_range: got [1] = (4, 3), expected 0 <= first <= second <= 5, the keys of the sequence"},
      {"packed_key_range",
       [](Valid& v) {
         v.pack(), v.args.key_range = v.int_view(3, {2, 2});
       },
       "key_range: got [1] = (5, 0), expected 0 <= first <= second <= 3, the keys of the sequence"},
      {"query_offset_shape", [](Valid& v) { v.args.query_offset = v.int_view(0, {3}); },
       "query_offset: got shape [3], expected [2], one diagonal for each sequence"},
      {"query_offset_dtype", [](Valid& v) { v.args.query_offset = v.view({2}, DType::f32); },
       "query_offset: got dtype float32, expected int32 [2]"},
      {"query_offset_far",
       [](Valid& v) {
         v.ints = {0, 2147483647}, v.args.query_offset = v.int_view(0, {2});
       },
       "query_offset: got [1] = 2147483647, expected a position of at most 2147418111 in magnitude"},
  };
}

std::vector<Refused> options() {
  return {
      {"scale_nan", [](Valid& v) { v.args.scale = kNaN; },
       "scale: got nan, expected a finite number, or none for 1/sqrt(dim)"},
      {"scale_infinite", [](Valid& v) { v.args.scale = -kInfinity; },
       "scale: got -inf, expected a finite number, or none for 1/sqrt(dim)"},
      {"causal", [](Valid& v) { v.args.causal = static_cast<Causal>(7); },
       "causal: got 7, expected none, top_left or bottom_right"},
      {"window_left", [](Valid& v) { v.args.window_left = -2; },
       "window_left: got -2, expected at least 0, or -1 for unlimited"},
      {"window_right", [](Valid& v) { v.args.window_right = -9; },
       "window_right: got -9, expected at least 0, or -1 for unlimited"},
      {"softcap_negative", [](Valid& v) { v.args.softcap = -1; },
       "softcap: got -1.000000, expected a finite number above 0, or 0 for none"},
      {"softcap_nan", [](Valid& v) { v.args.softcap = kNaN; },
       "softcap: got nan, expected a finite number above 0, or 0 for none"},
      {"softcap_below_fp32", [](Valid& v) { v.args.softcap = 1e-300; },
       "softcap: got 1e-300, expected 1e-30 to 1e38, or 0 for none"},
      {"softcap_above_fp32", [](Valid& v) { v.args.softcap = 3e38; },
       "softcap: got 3e+38, expected 1e-30 to 1e38, or 0 for none"},
      {"scale_above_fp32", [](Valid& v) { v.args.scale = 3e38; },
       "scale: got 3e+38, expected at most 1e38 either way"},
      {"softcap_infinite", [](Valid& v) { v.args.softcap = kInfinity; },
       "softcap: got inf, expected a finite number above 0, or 0 for none"},
      {"dropout_1", [](Valid& v) { v.args.dropout_p = 1; },
       "dropout_p: got 1.000000, expected a probability of at least 0 and below 1"},
      {"dropout_negative", [](Valid& v) { v.args.dropout_p = -0.1f; },
       "dropout_p: got -0.100000, expected a probability of at least 0 and below 1"},
      {"dropout_nan", [](Valid& v) { v.args.dropout_p = kNaN; },
       "dropout_p: got nan, expected a probability of at least 0 and below 1"},
  };
}

class AttentionErrors : public testing::TestWithParam<Refused> {};

TEST_P(AttentionErrors, NameTheArgument) {
  Valid v;
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

INSTANTIATE_TEST_SUITE_P(Tensors, AttentionErrors, testing::ValuesIn(tensors()), name_of_refused<Valid>);
INSTANTIATE_TEST_SUITE_P(Biases, AttentionErrors, testing::ValuesIn(biases()), name_of_refused<Valid>);
INSTANTIATE_TEST_SUITE_P(Sequences, AttentionErrors, testing::ValuesIn(sequences()), name_of_refused<Valid>);
INSTANTIATE_TEST_SUITE_P(Options, AttentionErrors, testing::ValuesIn(options()), name_of_refused<Valid>);

// What looks wrong and is not.
TEST(AttentionAccepts, EmptyTensorsWithoutMemory) {
  AttentionArgs args;
  args.query = TensorView::dense(nullptr, DType::bf16, {0, 4, 3, 8});
  args.key = args.value = TensorView::dense(nullptr, DType::bf16, {0, 2, 5, 8});
  args.out = TensorView::dense(nullptr, DType::bf16, {0, 4, 3, 8});
  const Status status = attention_forward(args, serial_executor());
  EXPECT_TRUE(status) << status.message();
}

TEST(AttentionAccepts, MasksForALongerMaximumThanThePackedSequences) {
  Valid v;
  v.pack();
  v.args.attn_mask = v.view({2, 1, 7, 9}, DType::boolean);
  const Status status = attention_forward(v.args, serial_executor());
  EXPECT_TRUE(status) << status.message();
}

TEST(AttentionAccepts, WindowsWiderThanAnySequence) {
  Valid v;
  v.args.window_left = v.args.window_right = std::numeric_limits<std::int64_t>::max();
  const Status status = attention_forward(v.args, serial_executor());
  EXPECT_TRUE(status) << status.message();
}

TEST(AttentionAccepts, AnyStrideWhereTheSizeIsOne) {
  Valid v;
  v.args.query = TensorView(v.zeros.data(), DType::f32, {1, 1, 1, 1}, {kHuge, -kHuge, 5, 7});
  v.args.key = v.args.value = TensorView(v.zeros.data(), DType::f32, {1, 1, 1, 1}, {0, 0, 0, 0});
  v.args.out = TensorView(v.zeros.data(), DType::f32, {1, 1, 1, 1}, {0, 0, 0, 0});
  v.args.lse = {};
  const Status status = attention_forward(v.args, serial_executor());
  EXPECT_TRUE(status) << status.message();
}

}  // namespace
}  // namespace tileformer::test
