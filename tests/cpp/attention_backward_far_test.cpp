// Rows that a mask hides wholly with a large negative number instead of -inf, as many models do: their lse no
// longer tells the sum of their exponentials, their gradients are those of the same row without the number.
#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

#include "attention_accuracy.h"
#include "attention_backward_data.h"
#include "attention_runner.h"

namespace tileformer::test {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Every third query is zero, so that nothing of its scores is lost beside the number.
AttentionBackwardData data_of(AttentionCase c, DType dtype) {
  c.heads = 4, c.kv_heads = 2;
  c.seq_q = 40, c.seq_k = 300;
  c.dim = c.dim_v = 24;
  c.causal = Causal::bottom_right;
  c.mask = {.kind = Mask::Kind::f32, .heads = true};
  AttentionBackwardData data(c, dtype);
  const TensorView& q = data.args.forward.query;
  for_each_index(q, [&](const Index& at) {
    if (at[2] % 3 == 0) set(q, at, 0);
  });
  return data;
}

Gradients with_rows_at(double number, const Target& target, const AttentionBackwardData& data) {
  const AttentionBackwardArgs& args = data.args;
  for_each_index(args.forward.attn_mask,
                 [&](const Index& at) { set(args.forward.attn_mask, at, at[2] % 3 == 0 ? number : 0); });
  EXPECT_TRUE(run_attention(target, args.forward));
  data.clear_gradients();
  EXPECT_TRUE(run_backward(target, args));
  return gradients_of(args);
}

void expect_near(const Gradients& is, const Gradients& expected, DType dtype, const std::string& what) {
  for (int g = 0; g < kGradients; ++g) {
    const double size = rms(expected[g], std::vector<double>(expected[g].size()));
    EXPECT_EQ(mismatch(kGradientNames[g], is[g], expected[g], 4 * unit_roundoff(dtype) * size), "") << what;
  }
}

constexpr double kNumbers[] = {
    -2000, -1e4, -65504, -1e9, -1e30, -0x1.fep127, std::numeric_limits<float>::lowest()};

TEST(AttentionBackwardFarRows, HaveTheGradientsOfTheirScores) {
  for (DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    for (float softcap : {0.f, 4.f}) {
      const AttentionBackwardData data = data_of({.name = "far", .softcap = softcap}, dtype);
      for (const Target& target : targets_of(dtype)) {
        SCOPED_TRACE(target.name + " " + name_of(dtype));
        const Gradients expected = with_rows_at(0, target, data);
        for (double number : kNumbers)
          expect_near(with_rows_at(number, target, data), expected, dtype, std::to_string(number));
      }
    }
  }
}

// Then nothing is left for the keys.
TEST(AttentionBackwardFarRows, MayHaveASinkAbove) {
  for (DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    const AttentionBackwardData data = data_of({.name = "far", .sinks = true}, dtype);
    for (std::int64_t h = 0; h < 4; ++h) set(data.args.forward.sinks, {h}, -1500);
    for (const Target& target : targets_of(dtype)) {
      SCOPED_TRACE(target.name + " " + name_of(dtype));
      const Gradients expected = with_rows_at(-kInfinity, target, data);
      for (double number : kNumbers)
        expect_near(with_rows_at(number, target, data), expected, dtype, std::to_string(number));
    }
  }
}

}  // namespace
}  // namespace tileformer::test
