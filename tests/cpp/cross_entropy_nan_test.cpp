// Ignored rows have no influence, whatever they hold; NaN and infinities show in their own row and nowhere
// else.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "cross_entropy_problem.h"

namespace tileformer::test {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr DType kDTypes[] = {DType::f32, DType::f16, DType::bf16, DType::f64};

template <typename Check>
void on_every_unit(Check check) {
  for (const auto& on : cross_entropy_targets()) {
    for (DType dtype : kDTypes) {
      SCOPED_TRACE(on.name + " " + name_of(dtype));
      check(on, dtype);
    }
  }
}

void expect_row(const CrossEntropyArgs& args, std::int64_t row, bool (*holds)(double), const char* what) {
  for (std::int64_t j = 0; j < args.logits.shape[1]; ++j)
    ASSERT_TRUE(holds(get(args.logits, {row, j}))) << "row " << row << " class " << j << " not " << what;
}
bool is_nan(double x) { return std::isnan(x); }
bool is_finite(double x) { return std::isfinite(x); }
bool is_zero(double x) { return x == 0; }

TEST(CrossEntropyNan, IgnoredRowsDoNotLeak) {
  on_every_unit([](const CrossEntropyTarget& on, DType dtype) {
    CrossEntropyProblem problem({.rows = 3, .vocab = 1050, .dtype = dtype});
    for (std::int64_t j = 0; j < 1050; ++j) problem.set_logit(1, j, j % 2 ? kNan : kInf);
    problem.target(1) = 1000000;
    problem.args.ignore_index = 1000000;
    problem.args.label_smoothing = 0.1;
    problem.args.z_loss = 0.1;
    ASSERT_TRUE(run_cross_entropy(on, problem.args));
    EXPECT_EQ(get(problem.args.loss, {1}), 0);
    EXPECT_EQ(get(problem.args.lse, {1}), 0);
    expect_row(problem.args, 1, is_zero, "zero");
    for (std::int64_t r : {0, 2}) {
      EXPECT_TRUE(std::isfinite(get(problem.args.loss, {r})));
      expect_row(problem.args, r, is_finite, "finite");
    }
  });
}

// An ignore_index that is a class: its rows are ignored, and the class is still one of the others.
TEST(CrossEntropyNan, IgnoreIndexMayBeAClass) {
  on_every_unit([](const CrossEntropyTarget& on, DType dtype) {
    CrossEntropyProblem problem({.rows = 2, .vocab = 20, .dtype = dtype});
    problem.target(0) = problem.args.ignore_index = 3;
    problem.target(1) = 4;
    ASSERT_TRUE(run_cross_entropy(on, problem.args));
    EXPECT_EQ(get(problem.args.loss, {0}), 0);
    EXPECT_GT(get(problem.args.logits, {1, 3}), 0);
  });
}

TEST(CrossEntropyNan, NanAndInfinityStayInTheirRow) {
  on_every_unit([](const CrossEntropyTarget& on, DType dtype) {
    for (double bad : {kNan, kInf}) {
      for (std::int64_t at : {0, 500, 1049}) {
        CrossEntropyProblem problem({.rows = 3, .vocab = 1050, .dtype = dtype});
        problem.set_logit(1, at, bad);
        problem.target(1) = 7;
        ASSERT_TRUE(run_cross_entropy(on, problem.args));
        EXPECT_TRUE(std::isnan(get(problem.args.loss, {1})));
        EXPECT_TRUE(std::isnan(get(problem.args.lse, {1})));
        expect_row(problem.args, 1, is_nan, "NaN");
        for (std::int64_t r : {0, 2}) {
          EXPECT_TRUE(std::isfinite(get(problem.args.loss, {r})));
          expect_row(problem.args, r, is_finite, "finite");
        }
      }
    }
  });
}

TEST(CrossEntropyNan, MinusInfinityIsAClassOfProbabilityZero) {
  on_every_unit([](const CrossEntropyTarget& on, DType dtype) {
    CrossEntropyProblem problem({.rows = 2, .vocab = 1500, .dtype = dtype});
    for (std::int64_t j = 0; j < 1100; ++j) problem.set_logit(0, j, -kInf);  // a whole block and more
    problem.target(0) = 1200;
    problem.set_logit(1, 9, -kInf);
    problem.target(1) = 9;
    ASSERT_TRUE(run_cross_entropy(on, problem.args));
    EXPECT_TRUE(std::isfinite(get(problem.args.loss, {0})));
    EXPECT_EQ(get(problem.args.logits, {0, 5}), 0);
    EXPECT_EQ(get(problem.args.loss, {1}), kInf);
    EXPECT_EQ(get(problem.args.logits, {1, 9}), -1);
    expect_row(problem.args, 1, is_finite, "finite");
  });
}

TEST(CrossEntropyNan, NothingButMinusInfinity) {
  on_every_unit([](const CrossEntropyTarget& on, DType dtype) {
    CrossEntropyProblem problem({.rows = 1, .vocab = 40, .dtype = dtype});
    for (std::int64_t j = 0; j < 40; ++j) problem.set_logit(0, j, -kInf);
    ASSERT_TRUE(run_cross_entropy(on, problem.args));
    EXPECT_EQ(get(problem.args.lse, {0}), -kInf);
    EXPECT_TRUE(std::isnan(get(problem.args.loss, {0})));
    expect_row(problem.args, 0, is_nan, "NaN");
  });
}

}  // namespace
}  // namespace tileformer::test
