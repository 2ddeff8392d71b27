// Properties of plan_attention_backward: bounded workspace, the same answer every time, plans that do not fit
// the call.
#include <gtest/gtest.h>

#include <string>

#include "attention_backward_accuracy.h"
#include "attention_backward_data.h"
#include "attention_runner.h"
#include "shapes_only.h"

namespace tileformer::test {
namespace {

AttentionBackwardArgs backward_shapes(std::int64_t heads, std::int64_t seq, DType dtype,
                                      std::int64_t batch = 1) {
  AttentionBackwardArgs args;
  args.forward = shapes_only(heads, heads, seq, seq, 128, dtype);
  AttentionArgs& f = args.forward;
  for (TensorView* view : {&f.query, &f.key, &f.value, &f.out})
    *view = TensorView::dense(view->data, dtype, {batch, heads, seq, 128});
  f.lse = TensorView::dense(f.query.data, dtype == DType::f64 ? DType::f64 : DType::f32, {batch, heads, seq});
  args.grad_out = args.grad_query = f.query;
  args.grad_key = args.grad_value = f.key;
  return args;
}

AttentionBackwardPlan plan_on(const Target& target, const AttentionBackwardArgs& args, int threads) {
  const Forced forced(target);
  AttentionBackwardPlan plan;
  const Status status = plan_attention_backward(args, threads, &plan);
  EXPECT_TRUE(status) << status.message();
  return plan;
}

// fp32 dK and dV of the heads under way, and what a worker needs for a chunk.
TEST(AttentionBackwardPlan, WorkspaceDoesNotGrowWithTheBatch) {
  for (const Target& target : targets()) {
    for (DType dtype : {DType::bf16, DType::f32}) {
      const AttentionBackwardPlan one = plan_on(target, backward_shapes(2, 4096, dtype), 2);
      const AttentionBackwardPlan many = plan_on(target, backward_shapes(16, 4096, dtype, 8), 2);
      EXPECT_LE(many.workspace_bytes, one.workspace_bytes + std::size_t(many.tasks) * sizeof(std::int64_t));
      EXPECT_LE(one.workspace_bytes, std::size_t{40} << 20);
    }
  }
}

TEST(AttentionBackwardPlan, IsTheSameEveryTime) {
  for (const Target& target : targets()) {
    const AttentionBackwardArgs args = backward_shapes(8, 777, DType::bf16);
    const AttentionBackwardPlan first = plan_on(target, args, 2), second = plan_on(target, args, 2);
    EXPECT_EQ(first.to_string(), second.to_string());
    EXPECT_EQ(first.workspace_bytes, second.workspace_bytes);
    EXPECT_NE(first.to_string().find(first.unit), std::string::npos) << first.to_string();
  }
}

TEST(AttentionBackwardPlan, UsesNoMoreThreadsThanGiven) {
  for (const Target& target : targets()) {
    for (int threads : {0, 1, 2, 3, 64}) {
      const AttentionBackwardPlan plan = plan_on(target, backward_shapes(1, 640, DType::f32), threads);
      EXPECT_GE(plan.threads, 1);
      EXPECT_LE(plan.threads, std::max(threads, 1));
    }
  }
}

TEST(AttentionBackwardPlan, Float64IsTheReference) {
  EXPECT_STREQ(plan_on(targets().front(), backward_shapes(2, 8, DType::f64), 1).unit, "reference");
}

TEST(AttentionBackwardPlan, WorkspaceThatIsTooSmallIsAnError) {
  const AttentionBackwardArgs args = backward_shapes(2, 64, DType::f32);
  const AttentionBackwardPlan plan = plan_on(targets().front(), args, 1);
  const Forced forced(targets().front());
  char some[64];
  for (Workspace workspace : {Workspace{nullptr, 0}, Workspace{some, sizeof some}}) {
    const Status status = attention_backward(args, plan, workspace, serial_executor());
    EXPECT_FALSE(status);
    EXPECT_EQ(status.message().find("workspace: given "), 0u) << status.message();
  }
}

AttentionCase several_chunks() {
  return {.name = "",
          .heads = 4,
          .kv_heads = 2,
          .seq_q = 300,
          .seq_k = 300,
          .dim = 16,
          .dim_v = 16,
          .causal = Causal::bottom_right};
}

// The ISA may be forced between plan and run: the plan's workspace must then not be overrun.
TEST(AttentionBackwardPlan, OfAnotherIsaIsRefusedOrFits) {
  const AttentionBackwardData data(several_chunks(), DType::bf16);
  const BackwardAccuracy accuracy(data.args);
  for (const Target& planned : targets()) {
    ASSERT_TRUE(run_attention(planned, data.args.forward));
    const AttentionBackwardPlan plan = plan_on(planned, data.args, 1);
    for (const Target& target : targets()) {
      SCOPED_TRACE(planned.name + " planned, " + target.name + " in force");
      const Forced forced(target);
      const GuardedMemory workspace(plan.workspace_bytes, Edge::end);
      data.clear_gradients();
      const Status status =
          attention_backward(data.args, plan, {workspace.data(), plan.workspace_bytes}, serial_executor());
      if (status) {
        EXPECT_EQ(accuracy.failure(data.args), "");
      } else {
        EXPECT_NE(status.message().find("plan"), std::string::npos) << status.message();
      }
    }
  }
}

TEST(AttentionBackwardPlan, ForMoreThreadsThanThereAre) {
  const AttentionBackwardData data(several_chunks(), DType::f32);
  for (const Target& target : targets()) {
    ASSERT_TRUE(run_attention(target, data.args.forward));
    ASSERT_TRUE(run_backward(target, data.args));
    const Gradients expected = gradients_of(data.args);
    const AttentionBackwardPlan plan = plan_on(target, data.args, 5);
    EXPECT_GT(plan.threads, 1);
    const Forced forced(target);
    const GuardedMemory workspace(plan.workspace_bytes, Edge::end);
    data.clear_gradients();
    ASSERT_TRUE(
        attention_backward(data.args, plan, {workspace.data(), plan.workspace_bytes}, serial_executor()));
    const Gradients is = gradients_of(data.args);
    for (int i = 0; i < kGradients; ++i) EXPECT_TRUE(same_bits(is[i], expected[i])) << kGradientNames[i];
  }
}

}  // namespace
}  // namespace tileformer::test
