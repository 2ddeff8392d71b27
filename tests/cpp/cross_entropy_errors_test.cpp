// Every wrong argument is refused by name, before anything is written.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "cross_entropy_problem.h"

namespace tileformer::test {
namespace {

struct Wrong {
  const char* argument;
  const char* given;
  std::function<void(CrossEntropyProblem&)> make;
};

TEST(CrossEntropyErrors, NameTheArgument) {
  const Wrong cases[] = {
      {"logits", "nothing", [](auto& p) { p.args.logits = {}; }},
      {"logits", "1 dimensions", [](auto& p) { p.args.logits.rank = 1; }},
      {"logits", "int64", [](auto& p) { p.args.logits.dtype = DType::i64; }},
      {"logits", "[3, 0]", [](auto& p) { p.args.logits.shape[1] = 0; }},
      {"logits", "stride of 2", [](auto& p) { p.args.logits.stride[1] = 2; }},
      {"logits", "overlap", [](auto& p) { p.args.logits.stride[0] = 99; }},
      {"logits", "null", [](auto& p) { p.args.logits.data = nullptr; }},
      {"logits", "64-bit", [](auto& p) { p.args.logits.stride[0] = INT64_MAX / 3; }},
      {"target", "nothing", [](auto& p) { p.args.target = {}; }},
      {"target", "int32", [](auto& p) { p.args.target.dtype = DType::i32; }},
      {"target", "[2]", [](auto& p) { p.args.target.shape[0] = 2; }},
      {"target", "100 in row 1", [](auto& p) { p.target(1) = 100; }},
      {"target", "-1 in row 2", [](auto& p) { p.target(2) = -1; }},
      {"loss", "float16", [](auto& p) { p.args.loss.dtype = DType::f16; }},
      {"loss", "stride of 0", [](auto& p) { p.args.loss.stride[0] = 0; }},
      {"lse", "[4]", [](auto& p) { p.args.lse.shape[0] = 4; }},
      {"row_scale", "float32 [3]", [](auto& p) { p.scale_rows(), p.args.gradient = false; }},
      {"label_smoothing", "1.5", [](auto& p) { p.args.label_smoothing = 1.5; }},
      {"label_smoothing", "nan", [](auto& p) { p.args.label_smoothing = NAN; }},
      {"z_loss", "-1", [](auto& p) { p.args.z_loss = -1; }},
      {"softcap", "-2", [](auto& p) { p.args.softcap = -2; }},
      {"softcap", "inf", [](auto& p) { p.args.softcap = INFINITY; }},
  };
  for (const Wrong& wrong : cases) {
    SCOPED_TRACE(std::string(wrong.argument) + " " + wrong.given);
    CrossEntropyProblem problem({.rows = 3, .vocab = 100});
    const TensorView logits = problem.args.logits, loss = problem.args.loss;
    const std::vector<double> before = elements_of(logits);
    wrong.make(problem);
    const Status status = cross_entropy(problem.args, serial_executor());
    ASSERT_EQ(status.code(), StatusCode::invalid_argument);
    EXPECT_EQ(status.message().find(std::string(wrong.argument) + ": got "), 0u) << status.message();
    EXPECT_NE(status.message().find(wrong.given), std::string::npos) << status.message();
    EXPECT_TRUE(same_bits(elements_of(logits), before));
    for (double x : elements_of(loss)) EXPECT_TRUE(std::isnan(x));
  }
}

TEST(CrossEntropyErrors, TargetSaysWhatIsAllowed) {
  CrossEntropyProblem problem({.rows = 3, .vocab = 100});
  problem.target(1) = 100;
  const Status status = cross_entropy(problem.args, serial_executor());
  EXPECT_EQ(status.message(), "target: got 100 in row 1, expected 0 to 99, or ignore_index -100");
}

}  // namespace
}  // namespace tileformer::test
