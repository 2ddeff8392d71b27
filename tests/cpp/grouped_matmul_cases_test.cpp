// Every unit against the fp64 reference: dtypes, sizes, ways of storage, few and many rows; threads.
#include <gtest/gtest.h>

#include <memory>

#include "grouped_matmul_data.h"
#include "reversed_executor.h"

namespace tileformer::test {
namespace {

// Half a unit in the last place of what is stored, and fp32 sums.
double relative_error(DType dtype) {
  return 4e-7 + (dtype == DType::bf16 ? 0x1p-8 : dtype == DType::f16 ? 0x1p-11 : 0);
}

// size: of the sums' terms, added up.
void expect_near(const char* name, const TensorView& view, const std::vector<double>& exact, double size) {
  const std::vector<double> is = elements_of(view);
  ASSERT_EQ(is.size(), exact.size()) << name;
  for (std::size_t i = 0; i < is.size(); ++i)
    ASSERT_NEAR(is[i], exact[i], std::abs(exact[i]) * relative_error(view.dtype) + 5e-7 * size)
        << name << ", element " << i;
}

std::string describe(const GroupedShape& s, const GroupedTarget& on) {
  std::string text = on.name + " " + name_of(s.dtype) + " in " + std::to_string(s.in) + " out " +
                     std::to_string(s.out) + (s.transposed ? " transposed" : "") + " counts";
  for (std::int64_t n : s.counts) text += " " + std::to_string(n);
  return text;
}

void compare(const GroupedShape& shape, Edge edge) {
  const GroupedData data(shape, edge);
  const GroupedResult exact = exact_results(data.args);
  const double most = double(*std::max_element(shape.counts.begin(), shape.counts.end()));
  for (const GroupedTarget& on : grouped_targets(shape.dtype)) {
    SCOPED_TRACE(describe(shape, on));
    const Status status = run_grouped(on, data.args);
    ASSERT_TRUE(status) << status.message();
    const GroupedMatmulBackwardArgs& a = data.args;
    expect_near("out", a.forward.out, exact.out, 1 + std::sqrt(double(shape.in)));
    expect_near("grad_rows", a.grad_rows, exact.grad_rows, 1 + std::sqrt(double(shape.out)));
    expect_near("grad_weight", a.grad_weight, exact.grad_weight, 1 + most);
    expect_near("grad_bias", a.grad_bias, exact.grad_bias, 1 + most);
    EXPECT_TRUE(data.clear_outputs()) << "wrote between the elements of an output";
  }
}

TEST(GroupedMatmulCases, EverySizeAndStorage) {
  for (DType dtype : {DType::f32, DType::f16, DType::bf16})
    for (bool transposed : {false, true})
      for (std::int64_t in : {1, 7, 16, 33, 100})
        for (std::int64_t out : {1, 6, 13, 32, 97}) {
          const GroupedShape shape{.counts = {1, 17, 0, 9},
                                   .in = in,
                                   .out = out,
                                   .dtype = dtype,
                                   .transposed = transposed,
                                   .bias_dtype = dtype,
                                   .grad_weight_dtype = out % 2 ? dtype : DType::f32,
                                   .gap = in % 4};
          compare(shape, (in + out) % 2 ? Edge::begin : Edge::end);
        }
}

TEST(GroupedMatmulCases, EveryNumberOfRows) {
  for (DType dtype : {DType::f32, DType::bf16})
    for (bool transposed : {false, true})
      for (std::int64_t n : {0, 1, 2, 3, 4, 5, 8, 9, 15, 16, 17, 24, 25, 31, 32, 33, 64, 65}) {
        GroupedShape shape{.counts = {n, 2}, .in = 50, .out = 40, .dtype = dtype, .transposed = transposed};
        shape.bias = n % 2;
        shape.beyond = n % 3;
        compare(shape, n % 2 ? Edge::begin : Edge::end);
      }
}

// More than a panel is deep in each direction, more rows than a run has, more columns than a block.
TEST(GroupedMatmulCases, LongSumsAndManyRows) {
  for (DType dtype : {DType::f32, DType::f16, DType::bf16})
    for (bool transposed : {false, true}) {
      compare({.counts = {1100, 3}, .in = 70, .out = 30, .dtype = dtype, .transposed = transposed},
              Edge::end);
      compare({.counts = {40, 2}, .in = 1300, .out = 20, .dtype = dtype, .transposed = transposed},
              Edge::begin);
      compare({.counts = {2, 40}, .in = 20, .out = 1300, .dtype = dtype, .transposed = transposed},
              Edge::end);
    }
}

TEST(GroupedMatmulCases, NothingToDo) {
  for (DType dtype : {DType::f32, DType::bf16, DType::f64}) {
    compare({.counts = {0, 0}, .dtype = dtype, .beyond = 0}, Edge::end);
    compare({.counts = {0, 0}, .dtype = dtype, .beyond = 4}, Edge::end);
    compare({.counts = {3, 4}, .in = 0, .dtype = dtype}, Edge::end);
    compare({.counts = {3, 4}, .out = 0, .dtype = dtype}, Edge::end);
  }
  const GroupedData none({.counts = {}, .beyond = 2});
  ASSERT_TRUE(grouped_matmul(none.args.forward, serial_executor()));
  for (double x : elements_of(none.args.forward.out)) EXPECT_EQ(x, 0);
}

TEST(GroupedMatmulCases, Float64IsTheReference) {
  const GroupedData data({.dtype = DType::f64});
  const GroupedResult exact = exact_results(data.args);
  ASSERT_TRUE(run_grouped(grouped_targets(DType::f64)[0], data.args));
  EXPECT_TRUE(same_bits(elements_of(data.args.forward.out), exact.out));
  EXPECT_TRUE(same_bits(elements_of(data.args.grad_weight), exact.grad_weight));
}

// Each gradient alone is the one that all together give.
TEST(GroupedMatmulCases, OnlyWhatIsWanted) {
  const GroupedData data({});
  ASSERT_TRUE(grouped_matmul_backward(data.args, serial_executor()));
  const GroupedResult all = results_of(data.args);
  for (int wanted = 0; wanted < 3; ++wanted) {
    data.clear_outputs();
    GroupedMatmulBackwardArgs args = data.args;
    args.forward.out = args.forward.weights.bias = {};
    if (wanted != 0) args.grad_rows = {};
    if (wanted != 1) args.grad_weight = {};
    if (wanted != 2) args.grad_bias = {};
    const Status status = grouped_matmul_backward(args, serial_executor());
    ASSERT_TRUE(status) << status.message();
    const GroupedResult one = results_of(args);
    EXPECT_TRUE(same_bits(one.grad_rows, wanted == 0 ? all.grad_rows : std::vector<double>{}));
    EXPECT_TRUE(same_bits(one.grad_weight, wanted == 1 ? all.grad_weight : std::vector<double>{}));
    EXPECT_TRUE(same_bits(one.grad_bias, wanted == 2 ? all.grad_bias : std::vector<double>{}));
  }
}

TEST(GroupedMatmulCases, SameBitsForAnyThreads) {
  const std::unique_ptr<Executor> pool = make_thread_pool(3);
  ReversedExecutor reversed;
  for (DType dtype : {DType::f32, DType::bf16})
    for (bool transposed : {false, true}) {
      const GroupedData data(
          {.counts = {3, 150, 0, 70, 6}, .in = 300, .out = 130, .dtype = dtype, .transposed = transposed});
      for (const GroupedTarget& on : grouped_targets(dtype)) {
        ASSERT_TRUE(run_grouped(on, data.args));
        const GroupedResult one = results_of(data.args);
        for (Executor* executor : {pool.get(), static_cast<Executor*>(&reversed)}) {
          data.clear_outputs();
          ASSERT_TRUE(run_grouped(on, data.args, *executor));
          const GroupedResult three = results_of(data.args);
          EXPECT_TRUE(same_bits(one.out, three.out)) << on.name;
          EXPECT_TRUE(same_bits(one.grad_rows, three.grad_rows)) << on.name;
          EXPECT_TRUE(same_bits(one.grad_weight, three.grad_weight)) << on.name;
          EXPECT_TRUE(same_bits(one.grad_bias, three.grad_bias)) << on.name;
        }
      }
    }
}

// Every value of rows, grad_out and weights that belongs to nobody is NaN, or stands where it must not
// spread.
TEST(GroupedMatmulCases, NaNStaysInItsRow) {
  const double nan = std::nan("");
  for (DType dtype : {DType::f32, DType::bf16})
    for (bool transposed : {false, true}) {
      const GroupedData data(
          {.counts = {3, 0, 30}, .in = 20, .out = 9, .dtype = dtype, .transposed = transposed});
      const GroupedMatmulBackwardArgs& a = data.args;
      for (std::int64_t r : {1, 20, 33, 34, 35}) set(a.forward.rows, {r, 2}, nan);  // 33 on: of no expert
      for (std::int64_t o = 0; o < 9; ++o) {
        for (std::int64_t r : {33, 34, 35}) set(a.grad_out, {r, o}, nan);
        for (std::int64_t i = 0; i < 20; ++i) set(a.forward.weights.weight, {1, o, i}, nan);
      }
      for (const GroupedTarget& on : grouped_targets(dtype)) {
        SCOPED_TRACE(on.name);
        ASSERT_TRUE(run_grouped(on, a));
        for_each_index(a.forward.out, [&](const Index& at) {
          const double x = get(a.forward.out, at);
          EXPECT_EQ(std::isnan(x), at[0] == 1 || at[0] == 20) << "row " << at[0];
          EXPECT_TRUE(at[0] < 33 || x == 0) << "row " << at[0];
        });
        for_each_index(a.grad_rows, [&](const Index& at) {
          const double x = get(a.grad_rows, at);
          EXPECT_TRUE(at[0] < 33 ? !std::isnan(x) : x == 0) << "row " << at[0];
        });
        for_each_index(a.grad_weight, [&](const Index& at) {
          EXPECT_EQ(std::isnan(get(a.grad_weight, at)), at[0] != 1 && at[2] == 2) << at[0] << " " << at[2];
        });
      }
    }
}

}  // namespace
}  // namespace tileformer::test
