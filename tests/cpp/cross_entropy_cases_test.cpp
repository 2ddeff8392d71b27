// Every unit against the fp64 reference: dtypes, tails, options, guard pages, threads.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "cross_entropy_problem.h"

namespace tileformer::test {
namespace {

struct Options {
  double label_smoothing = 0, z_loss = 0, softcap = 0;
  bool row_scale = false, ignored = false;
};

void apply(const Options& options, CrossEntropyProblem* problem) {
  problem->args.label_smoothing = options.label_smoothing;
  problem->args.z_loss = options.z_loss;
  problem->args.softcap = options.softcap;
  if (options.row_scale) problem->scale_rows();
  if (options.ignored) {
    for (std::int64_t r = 0; r < problem->args.logits.shape[0]; r += 2) problem->target(r) = -100;
  }
}

// Half a unit in the last place of the stored gradient, and fp32 arithmetic.
double gradient_tolerance(DType dtype, double expected) {
  const double relative = dtype == DType::bf16 ? 0x1p-8 : dtype == DType::f16 ? 0x1p-11 : 0;
  const double smallest = dtype == DType::f16 ? 0x1p-24 : 0;
  return std::abs(expected) * (relative + 4e-6) + smallest + 4e-7;
}

void compare(const CrossEntropyShape& shape, const Options& options, const CrossEntropyTarget& on,
             Edge edge) {
  CrossEntropyProblem ours(shape, 7, edge), expected(shape, 7, edge);
  apply(options, &ours);
  apply(options, &expected);
  // The reference keeps its gradient in fp64.
  CrossEntropyProblem exact({.rows = shape.rows, .vocab = shape.vocab, .dtype = DType::f64});
  for_each_index(expected.args.logits,
                 [&](const Index& at) { set(exact.args.logits, at, get(expected.args.logits, at)); });
  for (std::int64_t r = 0; r < shape.rows; ++r) exact.target(r) = expected.target(r);
  apply(options, &exact);
  ASSERT_TRUE(cross_entropy_reference(exact.args));
  const Status status = run_cross_entropy(on, ours.args);
  ASSERT_TRUE(status) << status.message();
  const CrossEntropyResult got = results_of(ours.args), want = results_of(exact.args);
  for (std::size_t r = 0; r < want.loss.size(); ++r) {
    EXPECT_NEAR(got.loss[r], want.loss[r], 2e-6 * (1 + std::abs(want.loss[r]))) << "row " << r;
    EXPECT_NEAR(got.lse[r], want.lse[r], 2e-6 * (1 + std::abs(want.lse[r]))) << "row " << r;
  }
  for (std::size_t i = 0; i < want.gradient.size(); ++i) {
    ASSERT_NEAR(got.gradient[i], want.gradient[i], gradient_tolerance(shape.dtype, want.gradient[i]))
        << "element " << i;
  }
}

const Options kPlain{},
    kAll{.label_smoothing = 0.1, .z_loss = 1e-3, .softcap = 5, .row_scale = true, .ignored = true};

TEST(CrossEntropyCases, EveryUnitAndTail) {
  for (const auto& on : cross_entropy_targets()) {
    for (DType dtype : {DType::f32, DType::f16, DType::bf16}) {
      for (std::int64_t vocab :
           {1, 2, 7, 8, 15, 16, 17, 31, 33, 63, 64, 65, 127, 1023, 1024, 1025, 2100, 5003}) {
        for (Edge edge : {Edge::begin, Edge::end}) {
          SCOPED_TRACE(on.name + " " + name_of(dtype) + " vocab " + std::to_string(vocab));
          compare({.rows = 3, .vocab = vocab, .dtype = dtype}, kPlain, on, edge);
          compare({.rows = 3, .vocab = vocab, .dtype = dtype, .gap = 3}, kAll, on, edge);
        }
      }
    }
  }
}

TEST(CrossEntropyCases, EveryOptionAlone) {
  const std::pair<const char*, Options> options[] = {{"label_smoothing", {.label_smoothing = 0.3}},
                                                     {"all smoothing", {.label_smoothing = 1}},
                                                     {"z_loss", {.z_loss = 0.1}},
                                                     {"softcap", {.softcap = 3}},
                                                     {"row_scale", {.row_scale = true}},
                                                     {"ignored", {.ignored = true}}};
  for (const auto& on : cross_entropy_targets()) {
    for (const auto& [name, option] : options) {
      for (DType dtype : {DType::f32, DType::f16, DType::bf16}) {
        SCOPED_TRACE(on.name + " " + name_of(dtype) + " " + name);
        compare({.rows = 5, .vocab = 1100, .dtype = dtype}, option, on, Edge::end);
      }
    }
  }
}

// Far from zero, far apart, and ever larger: the running maximum moves in every block.
TEST(CrossEntropyCases, ExtremeLogits) {
  for (const auto& on : cross_entropy_targets()) {
    SCOPED_TRACE(on.name);
    for (double offset : {-3e4, 3e4}) {
      CrossEntropyProblem problem({.rows = 1, .vocab = 4000}), shifted({.rows = 1, .vocab = 4000});
      for (std::int64_t j = 0; j < 4000; ++j) {
        problem.set_logit(0, j, double(j) / 64);
        shifted.set_logit(0, j, double(j) / 64 + offset);
      }
      problem.target(0) = shifted.target(0) = 3990;
      ASSERT_TRUE(cross_entropy_reference(problem.args));
      ASSERT_TRUE(run_cross_entropy(on, shifted.args));
      EXPECT_NEAR(get(shifted.args.loss, {0}), get(problem.args.loss, {0}), 1e-5);
      for (std::int64_t j = 0; j < 4000; ++j)
        ASSERT_NEAR(get(shifted.args.logits, {0, j}), get(problem.args.logits, {0, j}), 1e-6);
    }
    CrossEntropyProblem wide({.rows = 1, .vocab = 100});
    for (std::int64_t j = 0; j < 100; ++j) wide.set_logit(0, j, j % 2 ? 3e38 : -3e38);
    wide.target(0) = 1;
    ASSERT_TRUE(run_cross_entropy(on, wide.args));
    EXPECT_TRUE(std::isfinite(get(wide.args.loss, {0})));
    EXPECT_NEAR(get(wide.args.logits, {0, 3}), 0.02, 1e-6);
    EXPECT_EQ(get(wide.args.logits, {0, 2}), 0);
  }
}

TEST(CrossEntropyCases, WithoutGradientLogitsStay) {
  for (const auto& on : cross_entropy_targets()) {
    SCOPED_TRACE(on.name);
    CrossEntropyProblem with({.rows = 3, .vocab = 500, .dtype = DType::bf16}),
        without({.rows = 3, .vocab = 500, .dtype = DType::bf16});
    without.args.gradient = false;
    const std::vector<double> before = elements_of(without.args.logits);
    without.args.lse = {};
    ASSERT_TRUE(run_cross_entropy(on, with.args));
    ASSERT_TRUE(run_cross_entropy(on, without.args));
    EXPECT_TRUE(same_bits(elements_of(without.args.logits), before));
    EXPECT_TRUE(same_bits(elements_of(without.args.loss), elements_of(with.args.loss)));
  }
}

TEST(CrossEntropyCases, SameBitsForAnyThreadsAndAnyNeighbours) {
  for (const auto& on : cross_entropy_targets()) {
    SCOPED_TRACE(on.name);
    const CrossEntropyShape shape{.rows = 37, .vocab = 3001, .dtype = DType::bf16};
    CrossEntropyProblem serial(shape);
    apply(kAll, &serial);
    ASSERT_TRUE(run_cross_entropy(on, serial.args));
    const CrossEntropyResult expected = results_of(serial.args);
    for (int threads : {2, 3, 5}) {
      CrossEntropyProblem parallel(shape);
      apply(kAll, &parallel);
      const auto pool = make_thread_pool(threads);
      ASSERT_TRUE(run_cross_entropy(on, parallel.args, *pool));
      const CrossEntropyResult got = results_of(parallel.args);
      EXPECT_TRUE(same_bits(got.loss, expected.loss) && same_bits(got.lse, expected.lse) &&
                  same_bits(got.gradient, expected.gradient))
          << threads << " threads";
    }
    CrossEntropyProblem alone({.rows = 1, .vocab = 3001, .dtype = DType::bf16});
    CrossEntropyProblem source(shape);
    for (std::int64_t j = 0; j < 3001; ++j) alone.set_logit(0, j, get(source.args.logits, {5, j}));
    alone.target(0) = source.target(5);
    Options options = kAll;
    options.row_scale = options.ignored = false;
    apply(options, &alone);
    ASSERT_TRUE(run_cross_entropy(on, alone.args));
    EXPECT_EQ(get(alone.args.loss, {0}), expected.loss[5]);
  }
}

TEST(CrossEntropyCases, NoRows) {
  CrossEntropyProblem problem({.rows = 0, .vocab = 5});
  EXPECT_TRUE(cross_entropy(problem.args, serial_executor()));
}

}  // namespace
}  // namespace tileformer::test
