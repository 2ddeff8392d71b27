// merge_attention_states on every unit: against the fp64 reference, against attention to all keys at once,
// threads, rows without keys, NaN and infinities, in place.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <memory>

#include "attention_data.h"
#include "merge_attention_data.h"
#include "tileformer/attention.h"

namespace tileformer::test {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
const double kNaN = std::nan("");

double tolerance(DType dtype) { return dtype == DType::bf16 ? 0x1p-7 : dtype == DType::f16 ? 0x1p-10 : 2e-6; }

void expect_near(const std::vector<double>& is, const std::vector<double>& exact, double relative) {
  ASSERT_EQ(is.size(), exact.size());
  for (std::size_t i = 0; i < is.size(); ++i) {
    if (std::isfinite(exact[i]))
      ASSERT_NEAR(is[i], exact[i], relative * (1 + std::abs(exact[i]))) << "element " << i;
    else
      ASSERT_TRUE(std::isnan(exact[i]) ? std::isnan(is[i]) : is[i] == exact[i])
          << "element " << i << ": " << is[i] << ", exactly " << exact[i];
  }
}

struct Exact {
  std::vector<double> out, lse;
};

Exact exact_merge(MergeAttentionArgs args) {
  Exact exact{std::vector<double>(std::size_t(args.out.elements()) + 1),
              std::vector<double>(std::size_t(args.part_lse[0].elements()) + 1)};
  const auto [b, h, s, d] = args.out.shape;
  args.out = TensorView::dense(exact.out.data(), DType::f64, {b, h, s, d});
  args.lse = TensorView::dense(exact.lse.data(), DType::f64, {b, h, s});
  std::vector<std::vector<double>> wide;
  for (TensorView& lse : args.part_lse) {
    wide.push_back(elements_of(lse));
    wide.back().reserve(1);
    lse = TensorView::dense(wide.back().data(), DType::f64, {b, h, s});
  }
  EXPECT_TRUE(merge_attention_states_reference(args));
  exact.out.pop_back();
  exact.lse.pop_back();
  return exact;
}

const std::vector<DType> kMixed{DType::bf16, DType::f32, DType::f16};

TEST(MergeAttention, EveryShapeAndDType) {
  for (DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    for (std::int64_t parts : {1, 2, 3, 17, 256}) {
      for (std::int64_t dim : {1, 7, 8, 40, 64, 513}) {
        const MergeShape shape{.parts = parts,
                               .seq = 3,
                               .dim_v = dim,
                               .dtype = dtype,
                               .part_dtypes = kMixed,
                               .seq_first = dim % 2 != 0};
        for (Edge edge : {Edge::begin, Edge::end}) {
          const MergeData data(shape, edge);
          const Exact exact = exact_merge(data.args);
          for (const MergeTarget& target : merge_targets()) {
            SCOPED_TRACE(target.name + " " + name_of(dtype) + " " + std::to_string(parts) + " parts, dim " +
                         std::to_string(dim));
            const Status status = run_merge(target, data.args);
            ASSERT_TRUE(status) << status.message();
            expect_near(elements_of(data.args.out), exact.out, tolerance(dtype));
            expect_near(elements_of(data.args.lse), exact.lse, 2e-7);
            EXPECT_TRUE(data.clear_outputs()) << "wrote between the elements of an output";
          }
        }
      }
    }
  }
}

TEST(MergeAttention, IsAttentionToAllKeys) {
  const AttentionCase c{.name = "whole",
                        .batch = 2,
                        .heads = 4,
                        .kv_heads = 2,
                        .seq_q = 9,
                        .seq_k = 130,
                        .causal = Causal::bottom_right};
  const AttentionData data(c, DType::f32);
  ASSERT_TRUE(attention_forward(data.args, serial_executor()));
  const std::vector<double> out = elements_of(data.args.out), lse = elements_of(data.args.lse);

  const MergeData merged({.parts = 3, .batch = 2, .heads = 4, .seq = 9, .dim_v = 64});
  const std::int64_t ends[] = {0, 50, 129, 130};
  for (std::size_t p = 0; p < 3; ++p) {
    AttentionArgs part = data.args;
    part.out = merged.args.part_out[p];
    part.lse = merged.args.part_lse[p];
    std::vector<std::int32_t> range{std::int32_t(ends[p]), std::int32_t(ends[p + 1])};
    part.key_range = TensorView(range.data(), DType::i32, {2, 2}, {0, 1});
    ASSERT_TRUE(attention_forward(part, serial_executor()));
  }
  for (const MergeTarget& target : merge_targets()) {
    ASSERT_TRUE(run_merge(target, merged.args));
    expect_near(elements_of(merged.args.out), out, 2e-6);
    expect_near(elements_of(merged.args.lse), lse, 1e-6);
  }
}

TEST(MergeAttention, WhatSawNothingHasNoInfluence) {
  const MergeData data({.parts = 3, .batch = 1, .heads = 2, .seq = 4, .dim_v = 11});
  const MergeAttentionArgs& args = data.args;
  for (std::int64_t d = 0; d < 11; ++d) {
    set(args.part_out[1], {0, 0, 1, d}, kNaN);
    for (int p = 0; p < 3; ++p) set(args.part_out[p], {0, 1, 2, d}, p == 1 ? kInfinity : kNaN);
  }
  set(args.part_lse[1], {0, 0, 1}, -kInfinity);
  for (int p = 0; p < 3; ++p) set(args.part_lse[p], {0, 1, 2}, -kInfinity);
  // One part alone is what it was.
  set(args.part_lse[0], {0, 0, 3}, -kInfinity);
  set(args.part_lse[2], {0, 0, 3}, -kInfinity);
  const Exact exact = exact_merge(args);
  for (const MergeTarget& target : merge_targets()) {
    SCOPED_TRACE(target.name);
    ASSERT_TRUE(run_merge(target, args));
    expect_near(elements_of(args.out), exact.out, 2e-6);
    expect_near(elements_of(args.lse), exact.lse, 2e-7);
    for (double x : exact.out) ASSERT_TRUE(std::isfinite(x));
    EXPECT_EQ(get(args.lse, {0, 1, 2}), -kInfinity);
    for (std::int64_t d = 0; d < 11; ++d) {
      EXPECT_EQ(get(args.out, {0, 1, 2, d}), 0);
      EXPECT_EQ(get(args.out, {0, 0, 3, d}), get(args.part_out[1], {0, 0, 3, d}));
    }
    EXPECT_EQ(get(args.lse, {0, 0, 3}), get(args.part_lse[1], {0, 0, 3}));
  }
}

TEST(MergeAttention, NaNAndInfinitiesShowInTheirRows) {
  const MergeData data({.parts = 4, .batch = 1, .heads = 1, .seq = 8, .dim_v = 9});
  const MergeAttentionArgs& args = data.args;
  set(args.part_lse[2], {0, 0, 0}, kNaN);
  set(args.part_out[1], {0, 0, 1, 4}, kNaN);
  set(args.part_out[1], {0, 0, 2, 8}, -kInfinity);
  set(args.part_lse[0], {0, 0, 3}, kInfinity);
  for (int p : {1, 3}) set(args.part_lse[p], {0, 0, 4}, kInfinity);
  for (int p = 0; p < 4; ++p) set(args.part_lse[p], {0, 0, 5}, p == 1 ? kNaN : -kInfinity);
  set(args.part_lse[0], {0, 0, 6}, kInfinity);
  set(args.part_lse[1], {0, 0, 6}, kNaN);
  set(args.part_lse[3], {0, 0, 7}, 3e38);  // the rest vanishes
  const Exact exact = exact_merge(args);
  for (std::int64_t d = 0; d < 9; ++d) {
    EXPECT_TRUE(std::isnan(exact.out[d]));
    EXPECT_EQ(std::isnan(exact.out[9 + d]), d == 4);
    EXPECT_EQ(std::isfinite(exact.out[18 + d]), d != 8);
    EXPECT_EQ(exact.out[27 + d], get(args.part_out[0], {0, 0, 3, d}));
    EXPECT_NEAR(exact.out[36 + d],
                (get(args.part_out[1], {0, 0, 4, d}) + get(args.part_out[3], {0, 0, 4, d})) / 2, 1e-12);
  }
  EXPECT_EQ(exact.lse[3], kInfinity);
  for (const MergeTarget& target : merge_targets()) {
    SCOPED_TRACE(target.name);
    ASSERT_TRUE(run_merge(target, args));
    expect_near(elements_of(args.out), exact.out, 2e-6);
    expect_near(elements_of(args.lse), exact.lse, 2e-7);
  }
}

TEST(MergeAttention, SameBitsForAnyNumberOfThreadsAndInPlace) {
  const std::unique_ptr<Executor> three = make_thread_pool(3);
  const MergeShape shape{.parts = 3, .batch = 3, .heads = 8, .seq = 70, .dim_v = 128};
  for (const MergeTarget& target : merge_targets()) {
    SCOPED_TRACE(target.name);
    const MergeData data(shape), other(shape);
    ASSERT_TRUE(run_merge(target, data.args));
    const std::vector<double> out = elements_of(data.args.out), lse = elements_of(data.args.lse);
    data.clear_outputs();
    ASSERT_TRUE(run_merge(target, data.args, *three));
    EXPECT_TRUE(same_bits(elements_of(data.args.out), out));
    EXPECT_TRUE(same_bits(elements_of(data.args.lse), lse));
    MergeAttentionArgs in_place = other.args;
    in_place.out = in_place.part_out[1];
    in_place.lse = in_place.part_lse[1];
    ASSERT_TRUE(run_merge(target, in_place, *three));
    EXPECT_TRUE(same_bits(elements_of(in_place.out), out));
    EXPECT_TRUE(same_bits(elements_of(in_place.lse), lse));
  }
}

TEST(MergeAttention, EmptyTensorsAndNoLse) {
  for (std::int64_t seq : {0, 2}) {
    for (std::int64_t dim : {0, 5}) {
      MergeData data({.seq = seq, .dim_v = dim});
      ASSERT_TRUE(merge_attention_states(data.args, serial_executor()));
      data.args.lse = TensorView();
      ASSERT_TRUE(merge_attention_states(data.args, serial_executor()));
    }
  }
}

struct Wrong {
  const char* message;
  std::function<void(MergeAttentionArgs&)> make;
};

TEST(MergeAttentionErrors, NameTheArgument) {
  const Wrong cases[] = {
      {"part_out: got 0 parts, expected 1 to 256", [](auto& a) { a.part_out.clear(); }},
      {"part_out: got 257 parts, expected 1 to 256", [](auto& a) { a.part_out.resize(257); }},
      {"part_lse: got 1 parts, expected 2, as many as part_out has", [](auto& a) { a.part_lse.pop_back(); }},
      {"out: got nothing, expected a tensor [batch, heads, seq, dim_v]", [](auto& a) { a.out = {}; }},
      {"out: got dtype int32, expected float32, float16, bfloat16 or float64",
       [](auto& a) { a.out.dtype = DType::i32; }},
      {"out: got stride 2 in the last dimension, expected stride 1", [](auto& a) { a.out.stride[3] = 2; }},
      {"out: got stride 0 in dimension 2 of shape [2, 3, 5, 40], expected an output whose elements have "
       "addresses of their own",
       [](auto& a) { a.out.stride[2] = 0; }},
      {"part_out[1]: got nothing, expected a tensor [batch, heads, seq, dim_v]",
       [](auto& a) { a.part_out[1] = {}; }},
      {"part_out[1]: got dtype int8, expected float32, float16 or bfloat16 with out of float32",
       [](auto& a) { a.part_out[1].dtype = DType::i8; }},
      {"part_out[1]: got dtype float64, expected float32, float16 or bfloat16 with out of float32",
       [](auto& a) { a.part_out[1].dtype = DType::f64; }},
      {"part_out[0]: got shape [2, 3, 4, 40], expected [2, 3, 5, 40] [batch, heads, seq, dim_v]",
       [](auto& a) { a.part_out[0].shape[2] = 4; }},
      {"part_out[0]: got stride 3 in the last dimension, expected stride 1",
       [](auto& a) { a.part_out[0].stride[3] = 3; }},
      {"part_lse[1]: got dtype float16, expected float32", [](auto& a) { a.part_lse[1].dtype = DType::f16; }},
      {"part_lse[0]: got shape [2, 3, 4], expected [2, 3, 5] [batch, heads, seq]",
       [](auto& a) { a.part_lse[0].shape[2] = 4; }},
      {"lse: got shape [2, 3, 4], expected [2, 3, 5] [batch, heads, seq]",
       [](auto& a) { a.lse.shape[2] = 4; }},
  };
  for (const Wrong& wrong : cases) {
    MergeData data({});
    wrong.make(data.args);
    for (const Status& status : {merge_attention_states(data.args, serial_executor()),
                                 merge_attention_states_reference(data.args)}) {
      EXPECT_EQ(status.code(), StatusCode::invalid_argument);
      EXPECT_EQ(status.message(), wrong.message);
    }
  }
}

}  // namespace
}  // namespace tileformer::test
