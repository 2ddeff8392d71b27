// Every wrong argument of the permutations is refused by name, before anything is written.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "moe_permute_data.h"

namespace tileformer::test {
namespace {

const PermuteCase kCase{.tokens = 4, .hidden = 8, .experts = 5, .k = 2, .spare_rows = 0};

template <class Args>
struct Wrong {
  const char* message;
  std::function<void(Args&)> make;
};

void expect_refused(const Status& status, const char* message) {
  EXPECT_EQ(status.code(), StatusCode::invalid_argument);
  EXPECT_EQ(status.message(), message);
}

void expect_unwritten(const TensorView& view) {
  for (double x : elements_of(view)) EXPECT_TRUE(std::isnan(x));
}

TEST(MoePermuteErrors, PermuteNamesTheArgument) {
  const Wrong<PermuteTokensArgs> cases[] = {
      {"tokens: got nothing, expected a tensor [tokens, hidden]", [](auto& a) { a.tokens = {}; }},
      {"tokens: got dtype int32, expected float32, float16, bfloat16 or float64",
       [](auto& a) { a.tokens.dtype = DType::i32; }},
      {"tokens: got stride 2 in the last dimension, expected stride 1",
       [](auto& a) { a.tokens.stride[1] = 2; }},
      {"counts: got nothing, expected a tensor [num_experts]", [](auto& a) { a.counts = {}; }},
      {"num_experts: got 0, expected 1 to 2147483647", [](auto& a) { a.counts.shape[0] = 0; }},
      {"counts: got dtype int32, expected int64", [](auto& a) { a.counts.dtype = DType::i32; }},
      {"experts: got dtype float32, expected int32 or int64", [](auto& a) { a.experts.dtype = DType::f32; }},
      {"experts: got shape [3, 2], expected [4, 2] [tokens, k]", [](auto& a) { a.experts.shape[0] = 3; }},
      {"experts: got 6 in token 3, slot 1, expected 0 to 4, or -1 or 5 for no expert",
       [](auto& a) {
         set(a.experts, {3, 1}, 6);
       }},
      {"rows: got shape [7, 8], expected [8, 8] [tokens * k, hidden]", [](auto& a) { a.rows.shape[0] = 7; }},
      {"rows: got dtype bfloat16, expected float32", [](auto& a) { a.rows.dtype = DType::bf16; }},
      {"rows: got stride 2 in the last dimension, expected stride 1", [](auto& a) { a.rows.stride[1] = 2; }},
      {"rows: got stride 0 in dimension 0 of shape [8, 8], expected an output whose elements have addresses "
       "of "
       "their own",
       [](auto& a) { a.rows.stride[0] = 0; }},
      {"source: got shape [9], expected [8] [tokens * k]", [](auto& a) { a.source.shape[0] = 9; }},
      {"source: got stride 2 in the last dimension, expected stride 1",
       [](auto& a) { a.source.stride[0] = 2; }},
  };
  for (const auto& wrong : cases) {
    PermuteData data(kCase);
    const TensorView rows = data.permute.rows;
    wrong.make(data.permute);
    expect_refused(permute_tokens(data.permute, serial_executor()), wrong.message);
    expect_unwritten(rows);
  }
}

TEST(MoePermuteErrors, UnpermuteNamesTheArgument) {
  const Wrong<UnpermuteTokensBackwardArgs> cases[] = {
      {"rows: got nothing, expected a tensor [rows, hidden]", [](auto& a) { a.rows = {}; }},
      {"rows: got dtype int32, expected float32, float16, bfloat16 or float64",
       [](auto& a) { a.rows.dtype = DType::i32; }},
      {"rows: got stride 2 in the last dimension, expected stride 1", [](auto& a) { a.rows.stride[1] = 2; }},
      {"source: got dtype int32, expected int64", [](auto& a) { a.source.dtype = DType::i32; }},
      {"source: got shape [7], expected [8] [rows]", [](auto& a) { a.source.shape[0] = 7; }},
      {"source: got 8 in row 2, expected 0 to 7, or -1 for no pair", [](auto& a) { set(a.source, {2}, 8); }},
      {"source: got -2 in row 0, expected 0 to 7, or -1 for no pair",
       [](auto& a) { set(a.source, {0}, -2); }},
      {"source: got 3 once more in row 7, expected no pair twice",
       [](auto& a) { set(a.source, {1}, 3), set(a.source, {7}, 3); }},
      {"source: got 3 in row 1, expected -1, as there is no pair",
       [](auto& a) {
         set(a.source, {0}, -1), set(a.source, {1}, 3);
         a.weights.shape[1] = a.grad_weights.shape[1] = 0;
       }},
      {"weights: got dtype int64, expected float32, float16, bfloat16 or float64",
       [](auto& a) { a.weights.dtype = DType::i64; }},
      {"weights: got dtype float64, expected float32, float16 or bfloat16 with rows of float32",
       [](auto& a) { a.weights.dtype = DType::f64; }},
  };
  for (const auto& wrong : cases) {
    PermuteData data(kCase);
    for (std::int64_t r = 0; r < 8; ++r) set(data.backward.source, {r}, r == 3 ? -1 : double(r));
    wrong.make(data.backward);
    const UnpermuteTokensArgs forward{data.backward.rows, data.backward.source, data.backward.weights,
                                      data.unpermute.out};
    expect_refused(unpermute_tokens(forward, serial_executor()), wrong.message);
    expect_refused(unpermute_tokens_reference(forward), wrong.message);
    expect_refused(unpermute_tokens_backward(data.backward, serial_executor()), wrong.message);
    expect_refused(unpermute_tokens_backward_reference(data.backward), wrong.message);
    expect_unwritten(data.unpermute.out);
    expect_unwritten(data.backward.grad_rows);
  }
}

TEST(MoePermuteErrors, OutputsOfUnpermute) {
  const Wrong<UnpermuteTokensArgs> forward[] = {
      {"out: got shape [5, 8], expected [4, 8] [tokens, hidden]", [](auto& a) { a.out.shape[0] = 5; }},
      {"out: got dtype float16, expected float32", [](auto& a) { a.out.dtype = DType::f16; }},
      {"out: got stride 0 in dimension 0 of shape [4, 8], expected an output whose elements have addresses "
       "of "
       "their own",
       [](auto& a) { a.out.stride[0] = 0; }},
  };
  for (const auto& wrong : forward) {
    PermuteData data(kCase);
    wrong.make(data.unpermute);
    expect_refused(unpermute_tokens(data.unpermute, serial_executor()), wrong.message);
  }
  const Wrong<UnpermuteTokensBackwardArgs> backward[] = {
      {"grad_out: got shape [4, 7], expected [4, 8] [tokens, hidden]",
       [](auto& a) { a.grad_out.shape[1] = 7; }},
      {"grad_out: got stride 0 in the last dimension, expected stride 1",
       [](auto& a) { a.grad_out.stride[1] = 0; }},
      {"grad_rows: got shape [9, 8], expected [8, 8] [rows, hidden]",
       [](auto& a) { a.grad_rows.shape[0] = 9; }},
      {"grad_rows: got stride 0 in dimension 0 of shape [8, 8], expected an output whose elements have "
       "addresses "
       "of their own",
       [](auto& a) { a.grad_rows.stride[0] = 0; }},
      {"grad_weights: got dtype bfloat16, expected float32",
       [](auto& a) { a.grad_weights.dtype = DType::bf16; }},
      {"grad_weights: got shape [4, 3], expected [4, 2] [tokens, k]",
       [](auto& a) { a.grad_weights.shape[1] = 3; }},
      {"grad_weights: got stride 0 in dimension 1 of shape [4, 2], expected an output whose elements have "
       "addresses of their own",
       [](auto& a) { a.grad_weights.stride[1] = 0; }},
  };
  for (const auto& wrong : backward) {
    PermuteData data(kCase);
    wrong.make(data.backward);
    expect_refused(unpermute_tokens_backward(data.backward, serial_executor()), wrong.message);
  }
}

}  // namespace
}  // namespace tileformer::test
