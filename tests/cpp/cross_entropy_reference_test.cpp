// The reference beside numbers from torch.nn.functional.cross_entropy, and its gradient beside differences.
#include <gtest/gtest.h>

#include "cross_entropy_problem.h"

namespace tileformer::test {
namespace {

// F.cross_entropy(tensor([[1., 2., 3., -1.]]), tensor([1]), label_smoothing=eps), and logsumexp, in fp64.
TEST(CrossEntropyReference, AgreesWithTorch) {
  for (const auto& [smoothing, expected] : {std::pair{0.0, 1.4197166463153397}, {0.1, 1.4947166463153398}}) {
    CrossEntropyProblem problem({.rows = 1, .vocab = 4, .dtype = DType::f64});
    int j = 0;
    for (double x : {1.0, 2.0, 3.0, -1.0}) problem.set_logit(0, j++, x);
    problem.target(0) = 1;
    problem.args.label_smoothing = smoothing;
    ASSERT_TRUE(cross_entropy_reference(problem.args));
    EXPECT_NEAR(get(problem.args.loss, {0}), expected, 1e-12);
    EXPECT_NEAR(get(problem.args.lse, {0}), 3.4197166463153397, 1e-12);
  }
}

TEST(CrossEntropyReference, GradientIsTheDerivative) {
  for (double softcap : {0.0, 2.0}) {
    const auto make = [softcap] {
      CrossEntropyProblem problem({.rows = 2, .vocab = 7, .dtype = DType::f64});
      problem.args.label_smoothing = 0.2;
      problem.args.z_loss = 0.3;
      problem.args.softcap = softcap;
      problem.scale_rows();
      return problem;
    };
    CrossEntropyProblem analytic = make();
    ASSERT_TRUE(cross_entropy(analytic.args, serial_executor()));
    for (std::int64_t r = 0; r < 2; ++r) {
      for (std::int64_t j = 0; j < 7; ++j) {
        double loss[2];
        constexpr double kStep = 1e-5;
        for (int side : {0, 1}) {
          CrossEntropyProblem moved = make();
          moved.set_logit(r, j, get(moved.args.logits, {r, j}) + (side ? kStep : -kStep));
          moved.args.gradient = false;
          const double scale = get(moved.args.row_scale, {r});
          moved.args.row_scale = {};
          ASSERT_TRUE(cross_entropy(moved.args, serial_executor()));
          loss[side] = scale * get(moved.args.loss, {r});
        }
        EXPECT_NEAR(get(analytic.args.logits, {r, j}), (loss[1] - loss[0]) / (2 * kStep), 1e-8);
      }
    }
  }
}

}  // namespace
}  // namespace tileformer::test
