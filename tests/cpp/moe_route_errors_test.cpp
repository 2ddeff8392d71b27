// Every wrong argument of route and route_backward is refused by name, before anything is written.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>

#include "moe_route_data.h"

namespace tileformer::test {
namespace {

const RouteCase kCase{.tokens = 4, .experts = 12, .k = 3, .bias = true, .num_groups = 3, .top_groups = 2};

template <class Args>
struct Wrong {
  const char* message;
  std::function<void(Args&)> make;
};

void expect_refused(const Status& status, const char* message) {
  EXPECT_EQ(status.code(), StatusCode::invalid_argument);
  EXPECT_EQ(status.message(), message);
}

TEST(MoeRouteErrors, NameTheArgument) {
  const double infinity = std::numeric_limits<double>::infinity();
  const Wrong<RouteArgs> cases[] = {
      {"logits: got nothing, expected a tensor [tokens, experts]", [](auto& a) { a.logits = {}; }},
      {"logits: got dtype int32, expected float32, float16, bfloat16 or float64",
       [](auto& a) { a.logits.dtype = DType::i32; }},
      {"logits: got 0 experts, expected 1 to 1024", [](auto& a) { a.logits.shape[1] = 0; }},
      {"logits: got 1025 experts, expected 1 to 1024", [](auto& a) { a.logits.shape[1] = 1025; }},
      {"logits: got stride 2 in the last dimension, expected stride 1",
       [](auto& a) { a.logits.stride[1] = 2; }},
      {"bias: got shape [11], expected [12] [experts]", [](auto& a) { a.bias.shape[0] = 11; }},
      {"bias: got dtype int64, expected float32, float16, bfloat16 or float64",
       [](auto& a) { a.bias.dtype = DType::i64; }},
      {"bias: got stride 2 in the last dimension, expected stride 1", [](auto& a) { a.bias.stride[0] = 2; }},
      {"bias: got nan for expert 3, expected finite float32 values, or -inf",
       [](auto& a) { set(a.bias, {3}, std::nan("")); }},
      {"bias: got inf for expert 11, expected finite float32 values, or -inf",
       [=](auto& a) { set(a.bias, {11}, infinity); }},
      {"num_groups: got 5, expected a divisor of the 12 experts", [](auto& a) { a.num_groups = 5; }},
      {"num_groups: got 0, expected a divisor of the 12 experts", [](auto& a) { a.num_groups = 0; }},
      {"top_groups: got 4, expected 1 to 3", [](auto& a) { a.top_groups = 4; }},
      {"weights: got k = 3, expected 1 to 2, the experts that can be chosen",
       [](auto& a) { a.num_groups = 6, a.top_groups = 1; }},
      {"weights: got k = 0, expected 1 to 8, the experts that can be chosen",
       [](auto& a) { a.weights.shape[1] = 0; }},
      {"weights: got dtype float16, expected float32", [](auto& a) { a.weights.dtype = DType::f16; }},
      {"weights: got shape [3, 3], expected [4, 3] [tokens, k]", [](auto& a) { a.weights.shape[0] = 3; }},
      {"weights: got stride 0 in dimension 0 of shape [4, 3], expected an output whose elements have "
       "addresses "
       "of their own",
       [](auto& a) { a.weights.stride[0] = 0; }},
      {"experts: got dtype int64, expected int32", [](auto& a) { a.experts.dtype = DType::i64; }},
      {"experts: got shape [4, 2], expected [4, 3] [tokens, k]", [](auto& a) { a.experts.shape[1] = 2; }},
      {"chosen: got dtype float32, expected int32", [](auto& a) { a.chosen.dtype = DType::f32; }},
      {"scale: got 0, expected a finite float32 above 0", [](auto& a) { a.scale = 0; }},
      {"scale: got nan, expected a finite float32 above 0", [](auto& a) { a.scale = std::nan(""); }},
      {"scale: got 1e+39, expected a finite float32 above 0", [](auto& a) { a.scale = 1e39; }},
      {"capacity: got -2, expected 0 or more, or -1 for no limit", [](auto& a) { a.capacity = -2; }},
  };
  for (const auto& wrong : cases) {
    RouteData data(kCase);
    const TensorView weights = data.args.weights;
    wrong.make(data.args);
    expect_refused(route(data.args, serial_executor()), wrong.message);
    expect_refused(route_reference(data.args), wrong.message);
    for (double w : elements_of(weights)) EXPECT_TRUE(std::isnan(w));
  }
}

TEST(MoeRouteErrors, BackwardNamesTheArgument) {
  const Wrong<RouteBackwardArgs> cases[] = {
      {"logits: got nothing, expected a tensor [tokens, experts]", [](auto& a) { a.logits = {}; }},
      {"experts: got nothing, expected a tensor [tokens, k]", [](auto& a) { a.experts = {}; }},
      {"experts: got dtype int64, expected int32", [](auto& a) { a.experts.dtype = DType::i64; }},
      {"experts: got k = 13, expected 1 to 12, the experts that can be chosen",
       [](auto& a) { a.experts.shape[1] = 13; }},
      {"experts: got 12 in token 2, slot 1, expected 0 to 11, or -1 for a dropped slot",
       [](auto& a) {
         set(a.experts, {2, 1}, 12);
       }},
      {"experts: got -1 in token 0, slot 0, expected 0 to 11",
       [](auto& a) {
         set(a.experts, {0, 0}, -1), a.chosen = {};
       }},
      {"chosen: got -1 in token 3, slot 2, expected 0 to 11",
       [](auto& a) {
         set(a.chosen, {3, 2}, -1);
       }},
      {"chosen: got shape [4, 2], expected [4, 3] [tokens, k]", [](auto& a) { a.chosen.shape[1] = 2; }},
      {"grad_weights: got dtype bfloat16, expected float32",
       [](auto& a) { a.grad_weights.dtype = DType::bf16; }},
      {"grad_logits: got dtype float16, expected float32", [](auto& a) { a.grad_logits.dtype = DType::f16; }},
      {"grad_logits: got stride 2 in the last dimension, expected stride 1",
       [](auto& a) { a.grad_logits.stride[1] = 2; }},
      {"grad_logits: got stride 0 in dimension 0 of shape [4, 12], expected an output whose elements have "
       "addresses of their own",
       [](auto& a) { a.grad_logits.stride[0] = 0; }},
      {"scale: got -1, expected a finite float32 above 0", [](auto& a) { a.scale = -1; }},
  };
  for (const auto& wrong : cases) {
    RouteData data(kCase);
    ASSERT_TRUE(route(data.args, serial_executor()));
    const TensorView gradient = data.backward.grad_logits;
    wrong.make(data.backward);
    expect_refused(route_backward(data.backward, serial_executor()), wrong.message);
    expect_refused(route_backward_reference(data.backward), wrong.message);
    for (double g : elements_of(gradient)) EXPECT_TRUE(std::isnan(g));
  }
}

}  // namespace
}  // namespace tileformer::test
