// Properties of plan_attention: small workspace, the same answer every time, no look at the data.
#include <gtest/gtest.h>

#include <string>

#include "attention_accuracy.h"
#include "attention_data.h"
#include "attention_runner.h"
#include "shapes_only.h"

namespace tileformer::test {
namespace {

AttentionPlan plan_on(const Target& target, const AttentionArgs& args, int threads) {
  const Forced forced(target);
  AttentionPlan plan;
  const Status status = plan_attention(args, threads, &plan);
  EXPECT_TRUE(status) << status.message();
  return plan;
}

TEST(AttentionPlan, WorkspaceStaysSmallForLongSequences) {
  for (const Target& target : targets()) {
    for (DType dtype : {DType::bf16, DType::f16, DType::f32}) {
      const AttentionPlan plan = plan_on(target, shapes_only(8, 2, 131072, 131072, 128, dtype), 2);
      EXPECT_GT(plan.workspace_bytes, 0u) << target.name << " " << name_of(dtype);
      EXPECT_LE(plan.workspace_bytes, std::size_t{64} << 20) << target.name << " " << name_of(dtype);
    }
  }
}

// O(N) at most: scores of a whole row, or a packed copy of K and V, would show here.
TEST(AttentionPlan, WorkspaceHardlyGrowsWithTheSequence) {
  for (const Target& target : targets()) {
    const AttentionPlan near = plan_on(target, shapes_only(8, 2, 16384, 16384, 128, DType::bf16), 1);
    const AttentionPlan far = plan_on(target, shapes_only(8, 2, 1048576, 1048576, 128, DType::bf16), 1);
    EXPECT_LE(far.workspace_bytes, near.workspace_bytes + (std::size_t{8} << 20)) << target.name;
  }
}

TEST(AttentionPlan, IsTheSameEveryTime) {
  for (const Target& target : targets()) {
    const AttentionArgs args = shapes_only(32, 8, 777, 900, 80, DType::bf16);
    const AttentionPlan first = plan_on(target, args, 2), second = plan_on(target, args, 2);
    EXPECT_EQ(first.to_string(), second.to_string());
    EXPECT_EQ(first.workspace_bytes, second.workspace_bytes);
    EXPECT_NE(first.to_string(), "");
  }
}

TEST(AttentionPlan, UsesNoMoreThreadsThanGiven) {
  for (const Target& target : targets()) {
    for (int threads : {1, 2, 3, 64}) {
      const AttentionPlan plan = plan_on(target, shapes_only(1, 1, 64, 64, 64, DType::f32), threads);
      EXPECT_GE(plan.threads, 1);
      EXPECT_LE(plan.threads, threads);
    }
  }
}

TEST(AttentionPlan, NamesTheIsaInForce) {
  for (Isa isa : supported_isas()) {
    const AttentionPlan plan = plan_on({name_of(isa)}, shapes_only(2, 2, 64, 64, 64, DType::f32), 1);
    EXPECT_EQ(plan.isa, isa);
    EXPECT_NE(plan.to_string().find(name_of(isa)), std::string::npos) << plan.to_string();
  }
}

TEST(AttentionPlan, Float64IsTheReference) {
  const AttentionPlan plan = plan_on(targets().front(), shapes_only(2, 2, 8, 8, 8, DType::f64), 1);
  EXPECT_STREQ(plan.unit, "reference");
}

TEST(AttentionPlan, WorkspaceThatIsTooSmallIsAnError) {
  const AttentionArgs args = shapes_only(2, 2, 64, 64, 64, DType::f32);
  AttentionPlan plan;
  ASSERT_TRUE(plan_attention(args, 1, &plan));
  const Status status = attention_forward(args, plan, {nullptr, 0}, serial_executor());
  EXPECT_FALSE(status);
  EXPECT_NE(status.message().find("workspace"), std::string::npos) << status.message();
}

// The ISA may be forced between plan and run: the plan's workspace must then not be overrun.
TEST(AttentionPlan, OfAnotherIsaIsRefusedOrFits) {
  const AttentionCase c{.name = "", .heads = 4, .seq_q = 50, .seq_k = 200, .causal = Causal::bottom_right};
  const AttentionData data(c, DType::bf16);
  const Accuracy accuracy(data.args);
  for (const Target& planned : targets()) {
    const AttentionPlan plan = plan_on(planned, data.args, 1);
    for (const Target& target : targets()) {
      SCOPED_TRACE(planned.name + " planned, " + target.name + " in force");
      const Forced forced(target);
      const GuardedMemory workspace(plan.workspace_bytes, Edge::end);
      data.clear_outputs();
      const Status status =
          attention_forward(data.args, plan, {workspace.data(), plan.workspace_bytes}, serial_executor());
      if (status) {
        EXPECT_EQ(accuracy.failure(data.args), "");
      } else {
        EXPECT_NE(status.message().find("plan"), std::string::npos) << status.message();
      }
    }
  }
}

}  // namespace
}  // namespace tileformer::test
