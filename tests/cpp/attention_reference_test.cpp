// attention_reference against closed formulas. With V the identity the output is the probability matrix
// itself, so every feature can be checked without repeating the loops.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "attention_visible.h"
#include "elements.h"
#include "tileformer/attention.h"
#include "tileformer/philox.h"

namespace tileformer::test {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
const double kNaN = std::nan("");

// One head, scores chosen freely: dim 1, q = 1, k[j] = the raw score of key j, v[j] = e_j.
struct Probabilities {
  std::int64_t seq_q, seq_k;
  std::vector<double> q, k, v, out, lse;
  AttentionArgs args;

  Probabilities(std::int64_t queries, std::vector<double> raw_scores)
      : seq_q(queries), seq_k(static_cast<std::int64_t>(raw_scores.size())), k(std::move(raw_scores)) {
    q.assign(static_cast<std::size_t>(seq_q), 1);
    v.assign(static_cast<std::size_t>(seq_k * seq_k), 0);
    for (std::int64_t j = 0; j < seq_k; ++j) v[j * seq_k + j] = 1;
    out.assign(static_cast<std::size_t>(seq_q * seq_k), kNaN);
    lse.assign(static_cast<std::size_t>(seq_q), kNaN);
    args.query = TensorView::dense(q.data(), DType::f64, {1, 1, seq_q, 1});
    args.key = TensorView::dense(k.data(), DType::f64, {1, 1, seq_k, 1});
    args.value = TensorView::dense(v.data(), DType::f64, {1, 1, seq_k, seq_k});
    args.out = TensorView::dense(out.data(), DType::f64, {1, 1, seq_q, seq_k});
    args.lse = TensorView::dense(lse.data(), DType::f64, {1, 1, seq_q});
  }

  // Row i must be proportional to exp(scores), with exp(extra) joining the denominator.
  void expect_row(std::int64_t i, const std::vector<double>& scores, double extra = -kInfinity) const {
    double sum = std::exp(extra);
    for (double s : scores) sum += std::exp(s);
    for (std::int64_t j = 0; j < seq_k; ++j) {
      EXPECT_NEAR(out[i * seq_k + j], sum == 0 ? 0 : std::exp(scores[j]) / sum, 1e-14)
          << "row " << i << " key " << j;
    }
    if (sum == 0) {
      EXPECT_EQ(lse[i], -kInfinity);
    } else {
      EXPECT_NEAR(lse[i], std::log(sum), 1e-14) << "row " << i;
    }
  }

  void run() {
    const Status status = attention_reference(args);
    ASSERT_TRUE(status) << status.message();
  }
};

TEST(AttentionReference, Softmax) {
  Probabilities p(1, {0.5, -1, 2});
  p.run();
  p.expect_row(0, {0.5, -1, 2});
}

TEST(AttentionReference, ScaleDefaultsToInverseRootOfDim) {
  const std::vector<double> q{1, 2, 3, 4}, k{1, 1, 1, 1, 0, 0, 0, 0}, v{1, 0};
  double out = 0;
  AttentionArgs args;
  args.query = TensorView::dense(q.data(), DType::f64, {1, 1, 1, 4});
  args.key = TensorView::dense(k.data(), DType::f64, {1, 1, 2, 4});
  args.value = TensorView::dense(v.data(), DType::f64, {1, 1, 2, 1});
  args.out = TensorView::dense(&out, DType::f64, {1, 1, 1, 1});
  ASSERT_TRUE(attention_reference(args));
  EXPECT_NEAR(out, 1 / (1 + std::exp(-10 / 2.0)), 1e-15);
  args.scale = 0.25f;
  ASSERT_TRUE(attention_reference(args));
  EXPECT_NEAR(out, 1 / (1 + std::exp(-10 / 4.0)), 1e-15);
}

TEST(AttentionReference, CausalBottomRightAndTopLeft) {
  Probabilities p(2, {0, 1, 2});
  p.args.causal = Causal::bottom_right;
  p.run();
  p.expect_row(0, {0, 1, -kInfinity});
  p.expect_row(1, {0, 1, 2});
  p.args.causal = Causal::top_left;
  p.run();
  p.expect_row(0, {0, -kInfinity, -kInfinity});
  p.expect_row(1, {0, 1, -kInfinity});
}

TEST(AttentionReference, MoreQueriesThanKeysLeavesRowsEmpty) {
  Probabilities p(3, {1, 2});
  p.args.causal = Causal::bottom_right;
  p.run();
  p.expect_row(0, {-kInfinity, -kInfinity});
  p.expect_row(1, {1, -kInfinity});
  p.expect_row(2, {1, 2});
}

TEST(AttentionReference, WindowIsInclusiveAroundTheDiagonal) {
  Probabilities p(1, {0, 1, 2, 3, 4});  // bottom right: the diagonal is key 4
  p.args.window_left = 1;
  p.run();
  p.expect_row(0, {-kInfinity, -kInfinity, -kInfinity, 3, 4});
  const std::int32_t offset = 2;
  p.args.query_offset = TensorView::dense(&offset, DType::i32, {1});
  p.run();
  p.expect_row(0, {-kInfinity, 1, 2, 3, 4});
  p.args.window_right = 1;
  p.run();
  p.expect_row(0, {-kInfinity, 1, 2, 3, -kInfinity});
  p.args.causal = Causal::top_left;
  p.run();
  p.expect_row(0, {-kInfinity, 1, 2, -kInfinity, -kInfinity});
}

TEST(AttentionReference, WindowOfAnySize) {
  Probabilities p(1, {0, 1, 2});
  p.args.window_left = p.args.window_right = std::numeric_limits<std::int64_t>::max();
  p.run();
  p.expect_row(0, {0, 1, 2});
}

TEST(AttentionReference, KeyRange) {
  Probabilities p(1, {0, 1, 2, 3});
  const std::int32_t range[] = {1, 3};
  p.args.key_range = TensorView::dense(range, DType::i32, {1, 2});
  p.run();
  p.expect_row(0, {-kInfinity, 1, 2, -kInfinity});
}

TEST(AttentionReference, MaskThatIsBooleanOrAdded) {
  Probabilities p(2, {0, 1, 2});
  const std::uint8_t seen[] = {1, 0, 1, 0, 0, 0};
  p.args.attn_mask = TensorView::dense(seen, DType::boolean, {1, 1, 2, 3});
  p.run();
  p.expect_row(0, {0, -kInfinity, 2});
  p.expect_row(1, {-kInfinity, -kInfinity, -kInfinity});
  const float added[] = {0.5f, -2, static_cast<float>(-kInfinity)};
  p.args.attn_mask = TensorView::dense(added, DType::f32, {1, 1, 1, 3});
  p.run();
  p.expect_row(0, {0.5, -1, -kInfinity});
  p.expect_row(1, {0.5, -1, -kInfinity});
}

TEST(AttentionReference, AlibiFallsWithTheDistanceFromTheDiagonal) {
  Probabilities p(1, {0, 0, 0});
  const float slope = 0.5f;
  p.args.alibi_slopes = TensorView::dense(&slope, DType::f32, {1});
  p.run();
  p.expect_row(0, {-1, -0.5, 0});
  const std::int32_t offset = 1;
  p.args.query_offset = TensorView::dense(&offset, DType::i32, {1});
  p.run();
  p.expect_row(0, {-0.5, 0, -0.5});
}

TEST(AttentionReference, SoftcapComesBeforeTheMask) {
  Probabilities p(1, {1, 30});
  const float added[] = {3, 0};
  p.args.softcap = 2;
  p.args.attn_mask = TensorView::dense(added, DType::f32, {1, 1, 1, 2});
  p.run();
  p.expect_row(0, {2 * std::tanh(0.5) + 3, 2 * std::tanh(15)});
}

TEST(AttentionReference, SinkJoinsTheDenominatorOnly) {
  Probabilities p(1, {0, 1});
  const float sink = 0.75f;
  p.args.sinks = TensorView::dense(&sink, DType::f32, {1});
  p.run();
  p.expect_row(0, {0, 1}, 0.75);
  const std::uint8_t seen[] = {0, 0};
  p.args.attn_mask = TensorView::dense(seen, DType::boolean, {1, 1, 1, 2});
  p.run();
  p.expect_row(0, {-kInfinity, -kInfinity}, 0.75);
  EXPECT_EQ(p.lse[0], 0.75);
}

TEST(AttentionReference, DropoutFollowsPhilox) {
  Probabilities p(2, {0, 0, 0, 0, 0, 0});
  p.args.dropout_p = 0.5f;
  p.args.dropout_seed = 0x1122334455667788;
  p.args.dropout_offset = 0x99;
  p.run();
  for (std::uint32_t i = 0; i < 2; ++i) {
    for (std::uint32_t j = 0; j < 6; ++j) {
      const std::uint32_t word = philox4x32(j / 4, i, 0, 0x99, 0x55667788, 0x11223344).word[j % 4];
      EXPECT_NEAR(p.out[i * 6 + j], word < 0x80000000u ? 0 : 2.0 / 6, 1e-15);
    }
    EXPECT_NEAR(p.lse[i], std::log(6.0), 1e-15);
  }
}

TEST(AttentionReference, GroupsShareKeyValueHeads) {
  const std::vector<double> q(4, 0.0), k(2, 0.0), v{10, 20};
  std::vector<double> out(4);
  AttentionArgs args;
  args.query = TensorView::dense(q.data(), DType::f64, {1, 4, 1, 1});
  args.key = TensorView::dense(k.data(), DType::f64, {1, 2, 1, 1});
  args.value = TensorView::dense(v.data(), DType::f64, {1, 2, 1, 1});
  args.out = TensorView::dense(out.data(), DType::f64, {1, 4, 1, 1});
  ASSERT_TRUE(attention_reference(args));
  EXPECT_EQ(out, (std::vector<double>{10, 10, 20, 20}));
}

TEST(AttentionReference, PackedSequencesDoNotMix) {
  Probabilities p(3, {0, 1, 2, 3});
  const std::int32_t cu_q[] = {0, 1, 1, 3};
  const std::int64_t cu_k[] = {0, 2, 3, 4};
  p.args.cu_seqlens_query = TensorView::dense(cu_q, DType::i32, {4});
  p.args.cu_seqlens_key = TensorView::dense(cu_k, DType::i64, {4});
  p.run();
  p.expect_row(0, {0, 1, -kInfinity, -kInfinity});
  p.expect_row(1, {-kInfinity, -kInfinity, -kInfinity, 3});
  p.expect_row(2, {-kInfinity, -kInfinity, -kInfinity, 3});
}

TEST(AttentionReference, WhatIsNotSeenHasNoInfluence) {
  Probabilities p(2, {0, 1, kNaN});
  p.args.causal = Causal::top_left;
  p.v[5] = kNaN;       // key 1, column 2
  p.v[8] = kInfinity;  // key 2, column 2
  p.run();
  p.expect_row(0, {0, -kInfinity, -kInfinity});
  EXPECT_TRUE(std::isnan(p.out[5]));
  EXPECT_FALSE(std::isnan(p.out[3]) || std::isnan(p.out[4]) || std::isnan(p.lse[1]));
}

TEST(AttentionReference, NaNThatIsSeenIsNotSwallowed) {
  Probabilities p(1, {kNaN});
  p.run();
  EXPECT_TRUE(std::isnan(p.out[0]));
  EXPECT_TRUE(std::isnan(p.lse[0]));
}

TEST(AttentionReference, NoKeysGiveZeroAndMinusInfinity) {
  Probabilities p(2, {});
  p.out.assign(2, kNaN);
  p.args.value = TensorView::dense(p.v.data(), DType::f64, {1, 1, 0, 1});
  p.args.out = TensorView::dense(p.out.data(), DType::f64, {1, 1, 2, 1});
  p.run();
  EXPECT_EQ(p.out, (std::vector<double>{0, 0}));
  EXPECT_EQ(p.lse, (std::vector<double>{-kInfinity, -kInfinity}));
}

TEST(AttentionReference, HalfTypesRoundOnceAtTheEnd) {
  const std::uint16_t q = bf16_from_f32(0), k[] = {0, 0, 0};
  const std::uint16_t v[] = {bf16_from_f32(1), bf16_from_f32(1), bf16_from_f32(2)};
  std::uint16_t out = 0;
  AttentionArgs args;
  args.query = TensorView::dense(&q, DType::bf16, {1, 1, 1, 1});
  args.key = TensorView::dense(k, DType::bf16, {1, 1, 3, 1});
  args.value = TensorView::dense(v, DType::bf16, {1, 1, 3, 1});
  args.out = TensorView::dense(&out, DType::bf16, {1, 1, 1, 1});
  ASSERT_TRUE(attention_reference(args));
  EXPECT_EQ(out, bf16_from_f32(4.0f / 3));
}

}  // namespace
}  // namespace tileformer::test
