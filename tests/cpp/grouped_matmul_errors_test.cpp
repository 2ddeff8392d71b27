// What is wrong with a call of grouped_matmul, by name, and that nothing is written then.
#include <gtest/gtest.h>

#include <functional>

#include "grouped_matmul_data.h"

namespace tileformer::test {
namespace {

struct Wrong {
  const char* message;
  std::function<void(GroupedMatmulBackwardArgs&)> make;
};

GroupedMatmulArgs& f(GroupedMatmulBackwardArgs& a) { return a.forward; }

// Of both directions.
const Wrong kInputs[] = {
    {"rows: got nothing, expected a tensor [rows, in]", [](auto& a) { f(a).rows = {}; }},
    {"rows: got dtype int32, expected float32, float16, bfloat16 or float64",
     [](auto& a) { f(a).rows.dtype = DType::i32; }},
    {"rows: got stride 2 in the last dimension, expected stride 1", [](auto& a) { f(a).rows.stride[1] = 2; }},
    {"weight: got nothing, expected a tensor [experts, out, in]", [](auto& a) { f(a).weights.weight = {}; }},
    {"weight: got dtype bfloat16, expected float32, as rows",
     [](auto& a) { f(a).weights.weight.dtype = DType::bf16; }},
    {"weight: got dtype int8, expected float32, as rows",
     [](auto& a) { f(a).weights.weight.dtype = DType::i8; }},
    {"weight: got shape [3, 24, 39], expected [experts, out, 40], rows of as many elements as rows has",
     [](auto& a) { f(a).weights.weight.shape[2] = 39; }},
    {"weight: got strides 43 and 2 in the last two dimensions, expected stride 1 in one of them",
     [](auto& a) { f(a).weights.weight.stride[2] = 2; }},
    {"scale: got float32 [3, 24], expected none, as grouped_matmul takes no quantised weights",
     [](auto& a) { f(a).weights.scale = f(a).weights.bias; }},
    {"bias: got dtype float64, expected float32, float16 or bfloat16 beside rows of float32",
     [](auto& a) { f(a).weights.bias.dtype = DType::f64; }},
    {"bias: got shape [3, 23], expected [3, 24] [experts, out]",
     [](auto& a) { f(a).weights.bias.shape[1] = 23; }},
    {"counts: got nothing, expected a tensor [experts]", [](auto& a) { f(a).counts = {}; }},
    {"counts: got dtype int32, expected int64", [](auto& a) { f(a).counts.dtype = DType::i32; }},
    {"counts: got shape [2], expected [3] [experts]", [](auto& a) { f(a).counts.shape[0] = 2; }},
    {"counts: got -1 for expert 1, expected numbers of at least 0",
     [](auto& a) { set(f(a).counts, {1}, -1); }},
    {"counts: got more than 28 rows for experts 0 to 2, expected a sum of at most 28, the number of rows",
     [](auto& a) { set(f(a).counts, {2}, 24); }},
    {"counts: got more than 28 rows for experts 0 to 1, expected a sum of at most 28, the number of rows",
     [](auto& a) { static_cast<std::int64_t*>(f(a).counts.data)[2] = INT64_MAX; }},
};

const Wrong kForward[] = {
    {"out: got nothing, expected a tensor [rows, out]", [](auto& a) { f(a).out = {}; }},
    {"out: got dtype float16, expected float32", [](auto& a) { f(a).out.dtype = DType::f16; }},
    {"out: got shape [27, 24], expected [28, 24] [rows, out]", [](auto& a) { f(a).out.shape[0] = 27; }},
    {"out: got stride 0 in dimension 0 of shape [28, 24], expected an output whose elements have addresses "
     "of "
     "their own",
     [](auto& a) { f(a).out.stride[0] = 0; }},
};

const Wrong kBackward[] = {
    {"grad_out: got nothing, expected a tensor [rows, out]", [](auto& a) { a.grad_out = {}; }},
    {"grad_out: got shape [28, 23], expected [28, 24] [rows, out]",
     [](auto& a) { a.grad_out.shape[1] = 23; }},
    {"grad_rows: got shape [28, 39], expected [28, 40] [rows, in]",
     [](auto& a) { a.grad_rows.shape[1] = 39; }},
    {"grad_rows: got stride 2 in the last dimension, expected stride 1",
     [](auto& a) { a.grad_rows.stride[1] = 2; }},
    {"grad_weight: got dtype float16, expected float32, as weight, or float32",
     [](auto& a) { a.grad_weight.dtype = DType::f16; }},
    {"grad_weight: got shape [3, 24, 41], expected [3, 24, 40] [experts, out, in]",
     [](auto& a) { a.grad_weight.shape[2] = 41; }},
    {"grad_weight: got strides 43 and 2 in the last two dimensions, expected stride 1 in one of them",
     [](auto& a) { a.grad_weight.stride[2] = 2; }},
    {"grad_bias: got dtype int32, expected float32, float16 or bfloat16 beside rows of float32",
     [](auto& a) { a.grad_bias.dtype = DType::i32; }},
    {"grad_bias: got shape [2, 24], expected [3, 24] [experts, out]",
     [](auto& a) { a.grad_bias.shape[0] = 2; }},
};

bool unwritten(const TensorView& view) {
  const std::vector<double> all = elements_of(view);
  return std::all_of(all.begin(), all.end(), [](double x) { return std::isnan(x); });
}

void expect_error(const Status& status, const char* message) {
  EXPECT_EQ(status.code(), StatusCode::invalid_argument);
  EXPECT_EQ(status.message(), message);
}

template <std::size_t N>
void expect_errors(const Wrong (&cases)[N], bool forward, bool backward) {
  for (const Wrong& wrong : cases) {
    const GroupedData data({});
    GroupedMatmulBackwardArgs args = data.args;
    wrong.make(args);
    if (forward) {
      expect_error(grouped_matmul(args.forward, serial_executor()), wrong.message);
      expect_error(grouped_matmul_reference(args.forward), wrong.message);
      EXPECT_TRUE(unwritten(data.args.forward.out)) << wrong.message;
    }
    if (backward) {
      expect_error(grouped_matmul_backward(args, serial_executor()), wrong.message);
      expect_error(grouped_matmul_backward_reference(args), wrong.message);
      for (const TensorView& grad : {data.args.grad_rows, data.args.grad_weight, data.args.grad_bias})
        EXPECT_TRUE(unwritten(grad)) << wrong.message;
    }
  }
}

TEST(GroupedMatmulErrors, Inputs) { expect_errors(kInputs, true, true); }
TEST(GroupedMatmulErrors, Forward) { expect_errors(kForward, true, false); }
TEST(GroupedMatmulErrors, Backward) { expect_errors(kBackward, false, true); }

TEST(GroupedMatmulErrors, PlanAndWorkspace) {
  const GroupedData data({});
  GroupedMatmulPlan plan;
  ASSERT_TRUE(plan_grouped_matmul(data.args.forward, 1, &plan));
  std::vector<char> memory(plan.workspace_bytes);
  const std::string needed = std::to_string(plan.workspace_bytes);
  expect_error(grouped_matmul(data.args.forward, plan, {nullptr, 0}, serial_executor()),
               ("workspace: given 0 bytes, needed " + needed + " for this plan and these arguments").c_str());
  expect_error(
      grouped_matmul(data.args.forward, plan, {memory.data(), 100}, serial_executor()),
      ("workspace: given 100 bytes, needed " + needed + " for this plan and these arguments").c_str());
  ASSERT_TRUE(grouped_matmul(data.args.forward, plan, {memory.data(), memory.size()}, serial_executor()));
  const std::string unit = plan.unit;
  expect_error(grouped_matmul(data.args.forward, {}, {memory.data(), memory.size()}, serial_executor()),
               ("plan: made for the unit (none), this call runs on " + unit).c_str());
  expect_error(grouped_matmul_backward(data.args, {}, {memory.data(), memory.size()}, serial_executor()),
               ("plan: made for the unit (none), this call runs on " + unit).c_str());
  GroupedMatmulBackwardPlan backward;
  ASSERT_TRUE(plan_grouped_matmul_backward(data.args, 1, &backward));
  expect_error(grouped_matmul_backward(data.args, backward, {memory.data(), 10}, serial_executor()),
               ("workspace: given 10 bytes, needed " + std::to_string(backward.workspace_bytes) +
                " for this plan and these arguments")
                   .c_str());
}

}  // namespace
}  // namespace tileformer::test
