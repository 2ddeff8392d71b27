// Every argument that the backward refuses beside those of the forward, with its message: the argument, what
// was given, what is allowed. plan, backward and reference refuse alike.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tileformer/attention_backward.h"
#include "valid_attention.h"

namespace tileformer::test {
namespace {

// With a float mask that is expanded over the heads, and sinks.
struct ValidBackward : Valid {
  AttentionBackwardArgs backward;
  std::vector<std::uint64_t> results = std::vector<std::uint64_t>(4096);

  ValidBackward() {
    args.attn_mask = TensorView(zeros.data(), DType::f16, {2, 4, 3, 5}, {15, 0, 5, 1});
    args.sinks = view({4}, DType::bf16);
    args.out = result({2, 4, 3, 6});
    backward.forward = args;
    backward.grad_out = view({2, 4, 3, 6});
    backward.grad_lse = view({2, 4, 3});
    backward.grad_query = result({2, 4, 3, 8});
    backward.grad_key = result({2, 2, 5, 8});
    backward.grad_value = result({2, 2, 5, 6});
    backward.grad_mask = result({2, 1, 3, 5});
    backward.grad_sinks = result({4});
  }
  // All outputs in one place: nobody looks at them.
  TensorView result(std::initializer_list<std::int64_t> sizes, DType dtype = DType::f32) {
    return TensorView::dense(results.data(), dtype, sizes);
  }
};

using Refused = RefusedChange<ValidBackward>;
using V = ValidBackward&;

std::vector<Refused> inputs() {
  return {
      {"of_the_forward", [](V v) { v.backward.forward.key.dtype = DType::f16; },
       "key: got dtype float16, expected float32, the dtype of query"},
      {"lse_missing", [](V v) { v.backward.forward.lse = {}; },
       "lse: got none, expected the lse that the forward returned"},
      {"grad_out_missing", [](V v) { v.backward.grad_out = {}; },
       "grad_out: got nothing, expected a tensor [batch, heads, seq_q, dim_v]"},
      {"grad_out_rank",
       [](V v) {
         v.backward.grad_out = v.view({8, 3, 6});
       },
       "grad_out: got 3 dimensions [8, 3, 6], expected 4 dimensions [batch, heads, seq_q, dim_v]"},
      {"grad_out_dtype", [](V v) { v.backward.grad_out.dtype = DType::bf16; },
       "grad_out: got dtype bfloat16, expected float32"},
      {"grad_out_shape",
       [](V v) {
         v.backward.grad_out = v.view({2, 4, 3, 8});
       },
       "grad_out: got shape [2, 4, 3, 8], expected [2, 4, 3, 6] [batch, heads, seq_q, dim_v]"},
      {"grad_out_stride", [](V v) { v.backward.grad_out.stride[3] = 0; },
       "grad_out: got stride 0 in the last dimension, expected stride 1"},
      {"grad_out_null", [](V v) { v.backward.grad_out.data = nullptr; },
       "grad_out: got a null pointer for shape [2, 4, 3, 6], expected memory for every element"},
      {"grad_lse_rank",
       [](V v) {
         v.backward.grad_lse = v.view({2, 4, 3, 1});
       },
       "grad_lse: got 4 dimensions [2, 4, 3, 1], expected 3 dimensions [batch, heads, seq_q]"},
      {"grad_lse_dtype", [](V v) { v.backward.grad_lse.dtype = DType::f64; },
       "grad_lse: got dtype float64, expected float32"},
      {"grad_lse_shape",
       [](V v) {
         v.backward.grad_lse = v.view({2, 4, 4});
       },
       "grad_lse: got shape [2, 4, 4], expected [2, 4, 3] [batch, heads, seq_q]"},
  };
}

std::vector<Refused> gradients() {
  return {
      {"grad_query_rank",
       [](V v) {
         v.backward.grad_query = v.result({24, 8});
       },
       "grad_query: got 2 dimensions [24, 8], expected 4 dimensions [batch, heads, seq_q, dim]"},
      {"grad_query_dtype", [](V v) { v.backward.grad_query.dtype = DType::f64; },
       "grad_query: got dtype float64, expected float32"},
      {"grad_query_shape",
       [](V v) {
         v.backward.grad_query = v.result({2, 2, 3, 8});
       },
       "grad_query: got shape [2, 2, 3, 8], expected [2, 4, 3, 8] [batch, heads, seq_q, dim]"},
      {"grad_query_stride", [](V v) { v.backward.grad_query.stride[3] = 2; },
       "grad_query: got stride 2 in the last dimension, expected stride 1"},
      {"grad_query_overlaps_itself", [](V v) { v.backward.grad_query.stride[0] = 0; },
       "grad_query: got stride 0 in dimension 0 of shape [2, 4, 3, 8], expected an output whose elements "
       "have "
       "addresses of their own"},
      {"grad_key_shape",
       [](V v) {
         v.backward.grad_key = v.result({2, 4, 5, 8});
       },
       "grad_key: got shape [2, 4, 5, 8], expected [2, 2, 5, 8] [batch, kv_heads, seq_k, dim]"},
      {"grad_key_dtype", [](V v) { v.backward.grad_key.dtype = DType::bf16; },
       "grad_key: got dtype bfloat16, expected float32"},
      {"grad_key_stride", [](V v) { v.backward.grad_key.stride[3] = 5; },
       "grad_key: got stride 5 in the last dimension, expected stride 1"},
      {"grad_key_overlaps_itself", [](V v) { v.backward.grad_key.stride[1] = 0; },
       "grad_key: got stride 0 in dimension 1 of shape [2, 2, 5, 8], expected an output whose elements have "
       "addresses of their own"},
      {"grad_value_shape",
       [](V v) {
         v.backward.grad_value = v.result({2, 2, 5, 8});
       },
       "grad_value: got shape [2, 2, 5, 8], expected [2, 2, 5, 6] [batch, kv_heads, seq_k, dim_v]"},
      {"grad_value_dtype", [](V v) { v.backward.grad_value.dtype = DType::boolean; },
       "grad_value: got dtype bool, expected float32"},
      {"grad_value_stride", [](V v) { v.backward.grad_value.stride[3] = -1; },
       "grad_value: got stride -1 in the last dimension, expected stride 1"},
      {"grad_value_overlaps_itself", [](V v) { v.backward.grad_value.stride[2] = 0; },
       "grad_value: got stride 0 in dimension 2 of shape [2, 2, 5, 6], expected an output whose elements "
       "have "
       "addresses of their own"},
      {"grad_value_null", [](V v) { v.backward.grad_value.data = nullptr; },
       "grad_value: got a null pointer for shape [2, 2, 5, 6], expected memory for every element"},
      {"grad_mask_without_mask", [](V v) { v.backward.forward.attn_mask = {}; },
       "grad_mask: got a tensor, expected none, as attn_mask is not a floating tensor"},
      {"grad_mask_of_booleans",
       [](V v) {
         v.backward.forward.attn_mask = v.view({2, 4, 3, 5}, DType::boolean);
       },
       "grad_mask: got a tensor, expected none, as attn_mask is not a floating tensor"},
      {"grad_mask_rank",
       [](V v) {
         v.backward.grad_mask = v.result({2, 3, 5});
       },
       "grad_mask: got 3 dimensions [2, 3, 5], expected 4 dimensions in the shape of attn_mask"},
      {"grad_mask_dtype", [](V v) { v.backward.grad_mask.dtype = DType::f16; },
       "grad_mask: got dtype float16, expected float32"},
      {"grad_mask_shape",
       [](V v) {
         v.backward.grad_mask = v.result({2, 2, 3, 5});
       },
       "grad_mask: got shape [2, 2, 3, 5], expected [2, 4, 3, 5], the shape of attn_mask (1 where that has "
       "stride 0)"},
      {"grad_mask_sums_what_is_not_expanded",
       [](V v) {
         v.backward.grad_mask = v.result({2, 1, 1, 5});
       },
       "grad_mask: got shape [2, 1, 1, 5], expected [2, 4, 3, 5], the shape of attn_mask (1 where that has "
       "stride 0)"},
      {"grad_mask_overlaps_itself",
       [](V v) {
         v.backward.grad_mask = TensorView(v.results.data(), DType::f32, {2, 4, 3, 5}, {15, 0, 5, 1});
       },
       "grad_mask: got stride 0 in dimension 1 of shape [2, 4, 3, 5], expected an output whose elements have "
       "addresses of their own"},
      {"grad_sinks_without_sinks", [](V v) { v.backward.forward.sinks = {}; },
       "grad_sinks: got a tensor, expected none, as there are no sinks"},
      {"grad_sinks_rank",
       [](V v) {
         v.backward.grad_sinks = v.result({2, 2});
       },
       "grad_sinks: got 2 dimensions [2, 2], expected 1 dimensions [heads]"},
      {"grad_sinks_dtype", [](V v) { v.backward.grad_sinks.dtype = DType::bf16; },
       "grad_sinks: got dtype bfloat16, expected float32"},
      {"grad_sinks_shape", [](V v) { v.backward.grad_sinks = v.result({2}); },
       "grad_sinks: got shape [2], expected [4] [heads]"},
      {"grad_sinks_overlap", [](V v) { v.backward.grad_sinks.stride[0] = 0; },
       "grad_sinks: got stride 0 in dimension 0 of shape [4], expected an output whose elements have "
       "addresses of their own"},
  };
}

class AttentionBackwardErrors : public testing::TestWithParam<Refused> {};

TEST_P(AttentionBackwardErrors, NameTheArgument) {
  ValidBackward v;
  AttentionBackwardPlan plan;
  for (const Status& status :
       {plan_attention_backward(v.backward, 1, &plan), attention_backward(v.backward, serial_executor()),
        attention_backward_reference(v.backward)})
    ASSERT_TRUE(status) << status.message();
  GetParam().change(v);
  for (const Status& status :
       {plan_attention_backward(v.backward, 1, &plan), attention_backward(v.backward, serial_executor()),
        attention_backward(v.backward, plan, {}, serial_executor()),
        attention_backward_reference(v.backward)}) {
    EXPECT_EQ(status.message(), GetParam().message);
    EXPECT_EQ(status.code(), GetParam().code);
  }
}

INSTANTIATE_TEST_SUITE_P(Inputs, AttentionBackwardErrors, testing::ValuesIn(inputs()),
                         name_of_refused<ValidBackward>);
INSTANTIATE_TEST_SUITE_P(Gradients, AttentionBackwardErrors, testing::ValuesIn(gradients()),
                         name_of_refused<ValidBackward>);

// What looks wrong and is not.
TEST(AttentionBackwardAccepts, GradientsOfOneRowForAll) {
  ValidBackward v;
  for (int i = 0; i < 3; ++i) v.backward.grad_out.stride[i] = v.backward.grad_lse.stride[i] = 0;
  const Status status = attention_backward(v.backward, serial_executor());
  EXPECT_TRUE(status) << status.message();
}

TEST(AttentionBackwardAccepts, NothingWanted) {
  ValidBackward v;
  AttentionBackwardArgs none;
  none.forward = v.backward.forward;
  none.grad_out = v.backward.grad_out;
  const Status status = attention_backward(none, serial_executor());
  EXPECT_TRUE(status) << status.message();
}

TEST(AttentionBackwardAccepts, EmptyTensorsWithoutMemory) {
  AttentionBackwardArgs args;
  args.forward.query = TensorView::dense(nullptr, DType::bf16, {0, 4, 3, 8});
  args.forward.key = args.forward.value = TensorView::dense(nullptr, DType::bf16, {0, 2, 5, 8});
  args.forward.out = args.grad_out = args.grad_query = args.forward.query;
  args.forward.lse = TensorView::dense(nullptr, DType::f32, {0, 4, 3});
  args.grad_key = args.grad_value = args.forward.key;
  const Status status = attention_backward(args, serial_executor());
  EXPECT_TRUE(status) << status.message();
}

TEST(AttentionBackwardAccepts, Float64WithStatisticsOfFloat64) {
  ValidBackward v;
  AttentionBackwardArgs& b = v.backward;
  for (TensorView* view : {&b.forward.query, &b.forward.key, &b.forward.value, &b.forward.out, &b.forward.lse,
                           &b.grad_out, &b.grad_lse, &b.grad_query, &b.grad_key, &b.grad_value, &b.grad_mask})
    view->dtype = DType::f64;
  EXPECT_EQ(attention_backward(b, serial_executor()).message(),
            "grad_sinks: got dtype float32, expected float64");
  b.grad_sinks.dtype = DType::f64;
  const Status status = attention_backward(b, serial_executor());
  EXPECT_TRUE(status) << status.message();
}

}  // namespace
}  // namespace tileformer::test
