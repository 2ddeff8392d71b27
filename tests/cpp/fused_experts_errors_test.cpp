// Every argument of fused_experts and its backward, one wrong at a time: the message names it.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>

#include "fused_experts_data.h"

namespace tileformer::test {
namespace {

template <class Args>
struct Wrong {
  const char* message;
  std::function<void(Args&)> make;
};

const ExpertsCase kShape{
    .name = "", .tokens = 5, .k = 2, .experts = 4, .hidden = 64, .inter = 32, .bias = true};

ExpertsCase coded(DType codes) {
  ExpertsCase c = kShape;
  c.codes = codes;
  return c;
}

void expect_errors(const ExpertsCase& shape, const std::vector<Wrong<FusedExpertsArgs>>& cases) {
  for (const auto& wrong : cases) {
    ExpertsData data(shape, DType::f32);
    wrong.make(data.args);
    for (const Status& status :
         {fused_experts(data.args, serial_executor()), fused_experts_reference(data.args)}) {
      EXPECT_EQ(status.code(), StatusCode::invalid_argument) << wrong.message;
      EXPECT_EQ(status.message(), wrong.message);
    }
    EXPECT_TRUE(data.clear_outputs());
  }
}

TEST(FusedExpertsErrors, NameTheArgument) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  expect_errors(
      kShape,
      {
          {"hidden: got nothing, expected a tensor [tokens, hidden]", [](auto& a) { a.hidden = {}; }},
          {"hidden: got 1 dimensions [5], expected 2 dimensions [tokens, hidden]",
           [](auto& a) { a.hidden.rank = 1; }},
          {"hidden: got dtype int32, expected float32, float16, bfloat16 or float64",
           [](auto& a) { a.hidden.dtype = DType::i32; }},
          {"hidden: got shape [5, 0], expected at least 1 element of a token",
           [](auto& a) { a.hidden.shape[1] = 0; }},
          {"hidden: got stride 2 in the last dimension, expected stride 1",
           [](auto& a) { a.hidden.stride[1] = 2; }},
          {"hidden: got a null pointer for shape [5, 64], expected memory for every element",
           [](auto& a) { a.hidden.data = nullptr; }},
          {"gate_up: got nothing, expected a tensor [experts, 2 * inter, hidden]",
           [](auto& a) { a.gate_up.weight = {}; }},
          {"gate_up: got dtype bfloat16, expected float32 as hidden, int8 or int4x2",
           [](auto& a) { a.gate_up.weight.dtype = DType::bf16; }},
          {"gate_up: got shape [0, 64, 64], expected at least 1 expert",
           [](auto& a) { a.gate_up.weight.shape[0] = 0; }},
          {"gate_up: got shape [4, 63, 64], expected an even number of rows, at least 2",
           [](auto& a) { a.gate_up.weight.shape[1] = 63; }},
          {"gate_up: got shape [4, 64, 63], expected [4, 64, 64] [experts, 2 * inter, hidden]",
           [](auto& a) { a.gate_up.weight.shape[2] = 63; }},
          {"gate_up: got strides 64 and 2 in the last two dimensions, expected stride 1 in one of them",
           [](auto& a) { a.gate_up.weight.stride[2] = 2; }},
          {"gate_up_scale: got float32 [5, 64], expected none, as gate_up is not quantised",
           [](auto& a) { a.gate_up.scale = a.hidden; }},
          {"gate_up_bias: got dtype float64, expected float32, float16 or bfloat16 beside hidden of float32",
           [](auto& a) { a.gate_up.bias.dtype = DType::f64; }},
          {"gate_up_bias: got shape [4, 63], expected [4, 64] [experts, out]",
           [](auto& a) { a.gate_up.bias.shape[1] = 63; }},
          {"gate_up_bias: got stride 3 in the last dimension, expected stride 1",
           [](auto& a) { a.gate_up.bias.stride[1] = 3; }},
          {"down: got nothing, expected a tensor [experts, hidden, inter]",
           [](auto& a) { a.down.weight = {}; }},
          {"down: got dtype float16, expected float32 as hidden, int8 or int4x2",
           [](auto& a) { a.down.weight.dtype = DType::f16; }},
          {"down: got shape [3, 64, 32], expected [4, 64, 32] [experts, hidden, inter]",
           [](auto& a) { a.down.weight.shape[0] = 3; }},
          {"down: got shape [4, 64, 31], expected [4, 64, 32] [experts, hidden, inter]",
           [](auto& a) { a.down.weight.shape[2] = 31; }},
          {"down_bias: got shape [4, 65], expected [4, 64] [experts, out]",
           [](auto& a) { a.down.bias.shape[1] = 65; }},
          {"experts: got nothing, expected a tensor [tokens, k]", [](auto& a) { a.experts = {}; }},
          {"experts: got dtype float32, expected int32 or int64",
           [](auto& a) { a.experts.dtype = DType::f32; }},
          {"experts: got shape [4, 2], expected 5 rows, as many as hidden has",
           [](auto& a) { a.experts.shape[0] = 4; }},
          {"experts: got shape [5, 1073741824], expected at most 2147483647 elements",
           [](auto& a) { a.experts.shape[1] = 1 << 30; }},
          {"experts: got 5 in token 3, slot 1, expected 0 to 3, or -1 or 4 for no expert",
           [](auto& a) {
             set(a.experts, {3, 1}, 5);
           }},
          {"experts: got -2 in token 0, slot 0, expected 0 to 3, or -1 or 4 for no expert",
           [](auto& a) {
             set(a.experts, {0, 0}, -2);
           }},
          {"weights: got nothing, expected a tensor [tokens, k]", [](auto& a) { a.weights = {}; }},
          {"weights: got dtype int32, expected float32, float16, bfloat16 or float64",
           [](auto& a) { a.weights.dtype = DType::i32; }},
          {"weights: got shape [5, 1], expected [5, 2] [tokens, k]", [](auto& a) { a.weights.shape[1] = 1; }},
          {"activation: got 4, expected silu, gelu, gelu_tanh or swiglu_oai",
           [](auto& a) { a.activation = static_cast<ExpertActivation>(4); }},
          {"alpha: got inf, expected a finite number", [](auto& a) { a.alpha = kInfinity; }},
          {"limit: got 0, expected a number above 0", [](auto& a) { a.limit = 0; }},
          {"limit: got nan, expected a number above 0", [](auto& a) { a.limit = std::nan(""); }},
          {"out: got nothing, expected a tensor [tokens, hidden]", [](auto& a) { a.out = {}; }},
          {"out: got dtype float16, expected float32", [](auto& a) { a.out.dtype = DType::f16; }},
          {"out: got shape [5, 63], expected [5, 64] [tokens, hidden]", [](auto& a) { a.out.shape[1] = 63; }},
          {"out: got stride 2 in the last dimension, expected stride 1",
           [](auto& a) { a.out.stride[1] = 2; }},
          {"out: got stride 0 in dimension 0 of shape [5, 64], expected an output whose elements have "
           "addresses of their own",
           [](auto& a) { a.out.stride[0] = 0; }},
          {"out: got memory of hidden, expected memory of its own", [](auto& a) { a.out = a.hidden; }},
          {"gate_up_out: got shape [5, 64], expected [10, 64] [tokens * k, 2 * inter]",
           [](auto& a) { a.gate_up_out = a.out; }},
      });
}

TEST(FusedExpertsErrors, OfQuantisedWeights) {
  expect_errors(coded(DType::i8), {
                                      {"gate_up_scale: got nothing, expected a tensor [experts, out]",
                                       [](auto& a) { a.gate_up.scale = {}; }},
                                      {"gate_up_scale: got dtype float16, expected float32",
                                       [](auto& a) { a.gate_up.scale.dtype = DType::f16; }},
                                      {"down_scale: got shape [4, 63], expected [4, 64] [experts, out]",
                                       [](auto& a) { a.down.scale.shape[1] = 63; }},
                                      {"down: got stride 2 in the last dimension, expected stride 1",
                                       [](auto& a) { a.down.weight.stride[2] = 2; }},
                                  });
  expect_errors(
      coded(DType::i4x2),
      {
          {"gate_up_scale: got 2 dimensions [4, 64], expected 3 dimensions [experts, out, in / group]",
           [](auto& a) { a.gate_up.scale.rank = 2; }},
          {"gate_up_scale: got 4 groups of 64 columns, expected groups of 32, 64 or 128 columns that divide "
           "them",
           [](auto& a) { a.gate_up.scale.shape[2] = 4; }},
          {"down_scale: got 0 groups of 32 columns, expected groups of 32, 64 or 128 columns that divide "
           "them",
           [](auto& a) { a.down.scale.shape[2] = 0; }},
          {"gate_up: got shape [4, 64, 31], expected [4, 64, 32] [experts, 2 * inter, hidden]",
           [](auto& a) { a.gate_up.weight.shape[2] = 31; }},
          {"gate_up: got 63 columns of int4x2, expected an even number, two to a byte",
           [](auto& a) { a.hidden.shape[1] = 63; }},
      });
}

TEST(FusedExpertsErrors, OfTheBackward) {
  const std::vector<Wrong<FusedExpertsBackwardArgs>> cases = {
      {"hidden: got nothing, expected a tensor [tokens, hidden]", [](auto& a) { a.forward.hidden = {}; }},
      {"experts: got 9 in token 1, slot 0, expected 0 to 3, or -1 or 4 for no expert",
       [](auto& a) {
         set(a.forward.experts, {1, 0}, 9);
       }},
      {"grad_out: got nothing, expected a tensor [tokens, hidden]", [](auto& a) { a.grad_out = {}; }},
      {"grad_out: got dtype float16, expected float32", [](auto& a) { a.grad_out.dtype = DType::f16; }},
      {"grad_out: got stride 2 in the last dimension, expected stride 1",
       [](auto& a) { a.grad_out.stride[1] = 2; }},
      {"grad_hidden: got shape [5, 63], expected [5, 64] as its tensor",
       [](auto& a) { a.grad_hidden.shape[1] = 63; }},
      {"grad_gate_up: got dtype bfloat16, expected float32",
       [](auto& a) { a.grad_gate_up.dtype = DType::bf16; }},
      {"grad_gate_up: got stride 2 in dimension 2, expected stride 1, as the weights have",
       [](auto& a) { a.grad_gate_up.stride[2] = 2; }},
      {"grad_down: got stride 0 in dimension 0 of shape [4, 64, 32], expected an output whose elements have "
       "addresses of their own",
       [](auto& a) { a.grad_down.stride[0] = 0; }},
      {"grad_weights: got dtype float16, expected float32",
       [](auto& a) { a.grad_weights.dtype = DType::f16; }},
      {"grad_down_bias: got shape [4, 63], expected [4, 64] as its tensor",
       [](auto& a) { a.grad_down_bias.shape[1] = 63; }},
      {"grad_gate_up_bias: got float32 [4, 64], expected none, as there is nothing it is the gradient of",
       [](auto& a) { a.forward.gate_up.bias = {}; }},
  };
  const auto expect_error = [](const FusedExpertsBackwardArgs& args, const char* message) {
    for (const Status& status :
         {fused_experts_backward(args, serial_executor()), fused_experts_backward_reference(args)}) {
      EXPECT_EQ(status.code(), StatusCode::invalid_argument) << message;
      EXPECT_EQ(status.message(), message);
    }
  };
  for (const auto& wrong : cases) {
    ExpertsBackwardData data(kShape, DType::f32);
    wrong.make(data.backward);
    expect_error(data.backward, wrong.message);
    EXPECT_TRUE(data.clear_outputs());
  }
  const ExpertsData codes(coded(DType::i8), DType::f32);
  FusedExpertsBackwardArgs args;
  args.forward = codes.args;
  args.grad_out = codes.args.hidden;
  expect_error(args, "gate_up: got dtype int8, expected float32: codes have no gradient");
}

TEST(FusedExpertsErrors, NothingIsRequiredThatIsNotUsed) {
  ExpertsBackwardData data(kShape, DType::f32);
  FusedExpertsBackwardArgs args = data.backward;
  args.forward.out = {};
  for (TensorView* view : {&args.grad_hidden, &args.grad_gate_up, &args.grad_down, &args.grad_weights,
                           &args.grad_gate_up_bias, &args.grad_down_bias})
    *view = {};
  EXPECT_TRUE(fused_experts_backward(args, serial_executor()));
  EXPECT_TRUE(data.clear_outputs());
}

TEST(FusedExpertsErrors, RowsBesideEachOtherDoNotOverlap) {
  ExpertsData data(kShape, DType::f32);
  std::vector<float> both(5 * 128);
  FusedExpertsArgs args = data.args;
  args.hidden = TensorView(both.data(), DType::f32, {5, 64}, {128, 1});
  args.out = TensorView(both.data() + 64, DType::f32, {5, 64}, {128, 1});
  EXPECT_TRUE(fused_experts(args, serial_executor()));
  args.out.data = both.data() + 63;
  EXPECT_EQ(fused_experts(args, serial_executor()).message(),
            "out: got memory of hidden, expected memory of its own");
}

}  // namespace
}  // namespace tileformer::test
