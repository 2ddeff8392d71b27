// Plans and waves of grouped_matmul: bounded memory, every row exactly once, no look at the data.
#include <gtest/gtest.h>

#include "grouped_matmul_data.h"
#include "ops/moe/grouped_matmul/plan.h"

namespace tileformer::test {
namespace {

using namespace moe::grouped;

// Shapes without memory: a plan must not look.
GroupedMatmulBackwardArgs shapes(std::int64_t rows, std::int64_t experts, std::int64_t in, std::int64_t out,
                                 DType dtype) {
  static char somewhere[8];
  const auto dense = [&](DType t, std::initializer_list<std::int64_t> sizes) {
    return TensorView::dense(somewhere, t, sizes);
  };
  GroupedMatmulBackwardArgs a;
  a.forward.rows = dense(dtype, {rows, in});
  a.forward.weights.weight = dense(dtype, {experts, out, in});
  a.forward.counts = dense(DType::i64, {experts});
  a.forward.out = a.grad_out = dense(dtype, {rows, out});
  a.grad_rows = a.forward.rows;
  a.grad_weight = a.forward.weights.weight;
  return a;
}

GroupedMatmulBackwardPlan plan_on(const GroupedTarget& on, const GroupedMatmulBackwardArgs& args, int threads,
                                  GroupedMatmulPlan* forward) {
  const ForcedUnit forced(on);
  GroupedMatmulBackwardPlan backward;
  Status status = plan_grouped_matmul(args.forward, threads, forward);
  EXPECT_TRUE(status) << status.message();
  status = plan_grouped_matmul_backward(args, threads, &backward);
  EXPECT_TRUE(status) << status.message();
  return backward;
}

TEST(GroupedMatmulPlan, WorkspaceStaysSmall) {
  for (const GroupedTarget& on : grouped_targets(DType::bf16))
    for (std::int64_t rows : {1, 4096, 1 << 20}) {
      GroupedMatmulPlan forward;
      const GroupedMatmulBackwardPlan backward =
          plan_on(on, shapes(rows, 8, 1024, 3584, DType::bf16), 2, &forward);
      EXPECT_GT(forward.workspace_bytes, 0u) << on.name;
      EXPECT_LE(forward.workspace_bytes, std::size_t{48} << 20) << on.name;
      // For very many rows as much as the few columns take that are packed at a time.
      const std::size_t columns = std::size_t(rows) * std::size_t(forward.row_lanes) * 4;
      EXPECT_LE(backward.workspace_bytes, (std::size_t{64} << 20) + columns) << on.name;
    }
}

TEST(GroupedMatmulPlan, SaysWhatItDoes) {
  GroupedMatmulPlan plan;
  GroupedMatmulArgs args = shapes(64, 4, 128, 256, DType::f32).forward;
  ASSERT_TRUE(plan_grouped_matmul(args, 2, &plan));
  const std::string first = plan.to_string();
  EXPECT_NE(first.find("weights streamed up to"), std::string::npos) << first;
  EXPECT_EQ(plan.note, "");
  ASSERT_TRUE(plan_grouped_matmul(args, 2, &plan));
  EXPECT_EQ(plan.to_string(), first);
  args.weights.weight =
      TensorView::dense(args.weights.weight.data, DType::f32, {4, 128, 256}).transposed(1, 2);
  ASSERT_TRUE(plan_grouped_matmul(args, 2, &plan));
  EXPECT_EQ(plan.note, "weights are stored across: experts with few rows are multiplied in tiles");
  ASSERT_TRUE(plan_grouped_matmul(shapes(64, 4, 128, 256, DType::f64).forward, 2, &plan));
  EXPECT_EQ(plan.note, "computed by the reference, in float64 loops");
}

const std::vector<std::int64_t> kOffsets{0, 3, 3, 700, 720, 728, 728};

// Whatever a wave may hold, waves take every row once, one after the other, without overlap.
TEST(GroupedMatmulPlan, ProductWaves) {
  const GroupedMatmulBackwardArgs args = shapes(730, 6, 100, 50, DType::f32);
  for (const GroupedTarget& on : grouped_targets(DType::f32)) {
    const ForcedUnit forced(on);
    const Unit* unit;
    ASSERT_TRUE(units().choose(DType::f32, &unit));
    const ProductArgs k = product_args(args.forward, unit->row_step);
    const std::int64_t least = 32 * unit->run_words(k, unit->lanes, false);
    for (std::int64_t words : {least, least + 5, 8 * least}) {
      std::int64_t row = 0;
      for (const ProductWave& wave : product_waves(k, kOffsets, *unit, words)) {
        EXPECT_LE(wave.words, words);
        std::int64_t x = 0;
        std::size_t group = 0;
        for (const moe::grouped::Run& run : wave.runs) {
          EXPECT_EQ(run.first_row, row);
          EXPECT_EQ(run.x, x);
          EXPECT_GE(run.first_row, kOffsets[std::size_t(run.expert)]);
          EXPECT_LE(run.first_row + run.rows, kOffsets[std::size_t(run.expert) + 1]);
          EXPECT_EQ(run.streamed, run.rows <= unit->streamed_rows);
          row += run.rows;
          x += unit->run_words(k, run.rows, run.streamed);
          for (int first = 0; first < run.rows; first += run.streamed ? run.rows : unit->lanes, ++group) {
            ASSERT_LT(group, wave.groups.size());
            EXPECT_EQ(&wave.runs[std::size_t(wave.groups[group].run)], &run);
          }
        }
        EXPECT_EQ(group, wave.groups.size());
        EXPECT_EQ(x, wave.words);
      }
      EXPECT_EQ(row, 728);
    }
  }
}

TEST(GroupedMatmulPlan, GradientWaves) {
  const GroupedMatmulBackwardArgs args = shapes(730, 6, 1000, 50, DType::f32);
  for (const GroupedTarget& on : grouped_targets(DType::f32)) {
    const ForcedUnit forced(on);
    const Unit* unit;
    ASSERT_TRUE(units().choose(DType::f32, &unit));
    const WeightGradientArgs k = weight_gradient_args(args, unit->row_step);
    const std::int64_t least = 32 * unit->column_words(697);
    for (std::int64_t words : {least, 8 * least}) {
      std::int64_t expert = 0, column = 0;
      for (const GradientWave& wave : gradient_waves(k, kOffsets, *unit, words)) {
        EXPECT_LE(wave.words, words);
        for (const Block& block : wave.blocks) {
          EXPECT_EQ(block.expert, expert);
          EXPECT_EQ(block.first_column, column);
          EXPECT_EQ(block.first_row, kOffsets[std::size_t(expert)]);
          EXPECT_EQ(block.rows, kOffsets[std::size_t(expert) + 1] - block.first_row);
          column += block.groups * unit->lanes;
          if (column < 1000) continue;
          column = 0;
          ++expert;
        }
      }
      EXPECT_EQ(expert, 6);
    }
  }
}

// More than is packed at a time, in both directions.
TEST(GroupedMatmulPlan, SeveralWavesAreOneResult) {
  const GroupedData data({.counts = {4700, 2, 600}, .in = 2100, .out = 5, .bias = false});
  GroupedMatmulPlan plan;
  ASSERT_TRUE(plan_grouped_matmul(data.args.forward, 1, &plan));
  ASSERT_GE(plan.packed_bytes, std::size_t{32} << 20);
  ASSERT_TRUE(run_grouped(grouped_targets(DType::f32)[0], data.args));
  const GroupedMatmulArgs& f = data.args.forward;
  for (std::int64_t r : {0, 511, 512, 4699, 4700, 4702, 5301}) {
    const std::int64_t e = r < 4700 ? 0 : r < 4702 ? 1 : 2;
    for (std::int64_t o = 0; o < 5; ++o) {
      double sum = 0;
      for (std::int64_t i = 0; i < 2100; ++i) sum += get(f.rows, {r, i}) * get(f.weights.weight, {e, o, i});
      EXPECT_NEAR(get(f.out, {r, o}), sum, 1e-4);
    }
  }
  for (std::int64_t i : {0, 511, 512, 2099}) {
    double sum = 0;
    for (std::int64_t r = 0; r < 4700; ++r) sum += get(data.args.grad_out, {r, 3}) * get(f.rows, {r, i});
    EXPECT_NEAR(get(data.args.grad_weight, {0, 3, i}), sum, 1e-3);
  }
}

}  // namespace
}  // namespace tileformer::test
