// Quantised pages code by code: with one key, out is its V and lse the product with its K.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "attention_runner.h"
#include "elements.h"
#include "tileformer/attention.h"

namespace tileformer::test {
namespace {

constexpr std::int64_t kCodes = 256;

// K and V of one key, all codes of the type in a row, and queries that are rows of the unit matrix.
struct EveryCode {
  std::vector<std::uint8_t> codes = std::vector<std::uint8_t>(kCodes);
  std::vector<float> query, out, lse;
  float scale = 0.75f;
  std::int32_t page = 0, length = 1;
  AttentionArgs args;

  EveryCode(DType dtype, std::int64_t queries)
      : query(std::size_t(queries * kCodes)), out(query.size()), lse(std::size_t(queries)) {
    for (std::int64_t i = 0; i < kCodes; ++i) codes[std::size_t(i)] = static_cast<std::uint8_t>(i);
    for (std::int64_t i = 0; i < queries; ++i) query[std::size_t(i * kCodes + i)] = 1;
    args.query = TensorView::dense(query.data(), DType::f32, {1, 1, queries, kCodes});
    args.key = args.value = TensorView::dense(codes.data(), dtype, {1, 1, 1, kCodes});
    args.key_scale = args.value_scale = TensorView::dense(&scale, DType::f32, {1, 1, 1});
    args.block_table = TensorView::dense(&page, DType::i32, {1, 1});
    args.key_lengths = TensorView::dense(&length, DType::i32, {1});
    args.out = TensorView::dense(out.data(), DType::f32, {1, 1, queries, kCodes});
    args.lse = TensorView::dense(lse.data(), DType::f32, {1, 1, queries});
    args.scale = 1;
  }
  double value(std::int64_t code) const { return get(args.key, {0, 0, 0, code}) * scale; }
};

class AttentionCodes : public testing::TestWithParam<DType> {};

TEST_P(AttentionCodes, AreExactInValues) {
  for (std::int64_t queries : {1, 40}) {
    EveryCode problem(GetParam(), queries);
    std::vector<float> key(kCodes);  // zeros: a probability of exactly 1
    problem.args.key = TensorView::dense(key.data(), DType::f32, {1, 1, 1, kCodes});
    problem.args.key_scale = TensorView();
    for (const Target& target : targets()) {
      SCOPED_TRACE(target.name + " " + std::to_string(queries) + " queries");
      const Status status = run_attention(target, problem.args);
      ASSERT_TRUE(status) << status.message();
      for (std::int64_t i = 0; i < queries; ++i) {
        for (std::int64_t code = 0; code < kCodes; ++code) {
          const double is = get(problem.args.out, {0, 0, i, code}),
                       exact = get(problem.args.value, {0, 0, 0, code}) * problem.scale;
          ASSERT_TRUE(std::isnan(exact) ? std::isnan(is) : is == exact)
              << "code " << code << " is " << is << ", exactly " << exact;
        }
      }
    }
  }
}

TEST_P(AttentionCodes, AreExactInKeys) {
  EveryCode problem(GetParam(), kCodes);
  for (std::int64_t code = 0; code < kCodes; ++code) {
    // Zero times what is not finite would be in every score.
    if (!std::isfinite(problem.value(code))) problem.codes[std::size_t(code)] = 0;
  }
  std::vector<float> value{1};
  std::vector<float> out(kCodes);
  problem.args.value = TensorView::dense(value.data(), DType::f32, {1, 1, 1, 1});
  problem.args.value_scale = TensorView();
  problem.args.out = TensorView::dense(out.data(), DType::f32, {1, 1, kCodes, 1});
  for (const Target& target : targets()) {
    SCOPED_TRACE(target.name);
    const Status status = run_attention(target, problem.args);
    ASSERT_TRUE(status) << status.message();
    for (std::int64_t code = 0; code < kCodes; ++code) {
      const double exact = problem.value(code);
      EXPECT_NEAR(problem.lse[std::size_t(code)], exact, 2e-7 * std::abs(exact) + 2e-7) << "code " << code;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Quantised, AttentionCodes,
                         testing::Values(DType::i8, DType::f8_e4m3, DType::f8_e5m2),
                         [](const auto& info) { return std::string(name_of(info.param)); });

}  // namespace
}  // namespace tileformer::test
