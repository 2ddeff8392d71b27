// NaN and Inf in the backward: in a position that nobody sees they change no bit; in one that is seen they
// reach the gradients that depend on it, as the reference has them, and change no bit of the others.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <sstream>
#include <string>
#include <vector>

#include "attention_backward_data.h"
#include "attention_exclusions.h"
#include "attention_runner.h"
#include "attention_visible.h"
#include "case_params.h"
#include "exact_backward.h"

namespace tileformer::test {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
const double kNaN = std::nan("");

// The first element that is not as it should be: not finite where `expected` is not, and elsewhere the bits
// that it had before. Empty if there is none.
std::string violation(const AttentionBackwardArgs& args, const Gradients& before, const Gradients& expected) {
  std::ostringstream text;
  const Gradients is = gradients_of(args);
  for (int g = 0; g < kGradients; ++g) {
    for (std::size_t i = 0; i < is[g].size(); ++i) {
      const bool reached = !std::isfinite(expected[g][i]);
      if (reached ? !std::isfinite(is[g][i]) : same_bits(is[g][i], before[g][i])) continue;
      text << kGradientNames[g] << " element " << i << (reached ? " is reached" : " is not reached")
           << ", was " << before[g][i] << ", is " << is[g][i] << "\n";
      break;
    }
  }
  return text.str();
}

std::string difference(const Gradients& before, const AttentionBackwardArgs& args) {
  return violation(args, before, before);
}

struct Poison {
  const char* what;
  const TensorView* view;
  Index at;
  double value;
  bool forward_sees_it;  // out and lse are made from it, not from what was there
};

// One for every tensor, in the sequence and row that are their turn.
std::vector<Poison> poisons_of(const AttentionBackwardArgs& args, std::int64_t turn) {
  const AttentionArgs& f = args.forward;
  const std::int64_t n = turn % sequences_of(f), batch = f.cu_seqlens_query ? 0 : n;
  const Span queries = queries_of(f, n), keys = keys_of(f, n);
  const auto place = [](const Span& span, std::int64_t which) {
    const std::int64_t at[] = {0, span.count / 2, span.count - 1, span.count / 3};
    return span.first + at[which % 4];
  };
  const std::int64_t head = turn % f.query.shape[1], kv_head = turn % f.key.shape[1];
  const std::int64_t d = turn % f.query.shape[3], d_v = turn % f.value.shape[3];
  std::vector<Poison> poisons;
  const auto key = [&](const char* what, const TensorView& view, std::int64_t which, std::int64_t column,
                       double value, bool in_forward) {
    if (keys.count == 0) return;
    poisons.push_back({what, &view, {batch, kv_head, place(keys, which), column}, value, in_forward});
  };
  const auto query = [&](const char* what, const TensorView& view, std::int64_t which, std::int64_t column,
                         double value, bool in_forward) {
    if (queries.count == 0 || !view) return;
    poisons.push_back({what, &view, {batch, head, place(queries, which), column}, value, in_forward});
  };
  key("key", f.key, turn, d, kNaN, false);
  key("key in forward", f.key, turn + 1, d, kNaN, true);
  key("value", f.value, turn + 2, d_v, kNaN, false);
  key("value in forward", f.value, turn + 3, d_v, kInfinity, true);
  query("query", f.query, turn, d, kNaN, false);
  query("query in forward", f.query, turn + 1, d, kNaN, true);
  query("grad_out", args.grad_out, turn + 2, d_v, kNaN, false);
  query("grad_out infinite", args.grad_out, turn + 3, d_v, -kInfinity, false);
  query("grad_lse", args.grad_lse, turn + 1, 0, kNaN, false);
  query("lse", f.lse, turn, 0, kNaN, false);
  if (f.sinks) poisons.push_back({"sink in forward", &f.sinks, {head}, kNaN, true});
  return poisons;
}

class AttentionBackwardNaN : public testing::TestWithParam<CaseAndDType> {};

// out and lse are those of the reference.
TEST_P(AttentionBackwardNaN, ReachesWhatDependsOnIt) {
  const auto& [c, dtype] = GetParam();
  if (c.scale == 0.f) GTEST_SKIP() << "grad_query depends on nothing";
  const AttentionBackwardData data(c, dtype);
  const AttentionBackwardArgs& args = data.args;
  ASSERT_TRUE(attention_reference(args.forward));
  const std::vector<Target> targets = targets_of(dtype);
  std::vector<Gradients> clean;
  for (const Target& target : targets) {
    ASSERT_TRUE(run_backward(target, args));
    clean.push_back(gradients_of(args));
  }
  const std::int64_t turn = c.seq_q + c.seq_k + c.heads + static_cast<std::int64_t>(dtype);
  const std::vector<Poison> poisons = poisons_of(args, turn);
  // A third of them: cases and dtypes take turns.
  for (std::size_t i = static_cast<std::size_t>(turn % 3); i < poisons.size(); i += 3) {
    const Poison& poison = poisons[i];
    SCOPED_TRACE(poison.what);
    const double healthy = get(*poison.view, poison.at);
    set(*poison.view, poison.at, poison.value);
    ASSERT_TRUE(!poison.forward_sees_it || attention_reference(args.forward).is_ok());
    Gradients pattern;
    ASSERT_TRUE(exact_backward(args, &pattern, true));
    for (std::size_t t = 0; t < targets.size(); ++t) {
      SCOPED_TRACE(targets[t].name);
      data.clear_gradients();
      const Status status = run_backward(targets[t], args);
      ASSERT_TRUE(status) << status.message();
      EXPECT_EQ(violation(args, clean[t], pattern), "");
    }
    set(*poison.view, poison.at, healthy);
    ASSERT_TRUE(!poison.forward_sees_it || attention_reference(args.forward).is_ok());
  }
}

// Half types on the fp32 units differ in how they are read and written, no more.
INSTANTIATE_TEST_SUITE_P(Table, AttentionBackwardNaN,
                         testing::Combine(testing::ValuesIn(cases_with_exclusions()),
                                          testing::Values(DType::f32, DType::bf16)),
                         name_of_case_and_dtype);

class AttentionBackwardExcluded : public testing::TestWithParam<CaseAndDType> {};

// Every key that no query sees, every query that sees no key, every mask element that is not looked at.
TEST_P(AttentionBackwardExcluded, ChangesNoBit) {
  const auto& [c, dtype] = GetParam();
  const AttentionBackwardData data(c, dtype), dirty(c, dtype);
  const AttentionArgs &f = data.args.forward, &g = dirty.args.forward;
  const auto fill_row = [](const TensorView& view, Index at, double value) {
    for (at[3] = 0; at[3] < view.shape[3]; ++at[3]) set(view, at, value);
  };
  std::vector<Index> blind;  // rows of lse whose queries see nothing
  const bool own_elements =
      f.attn_mask && f.attn_mask.shape == Sizes{c.sequences(), c.heads, c.seq_q, c.seq_k};
  for (std::int64_t n = 0; n < c.sequences(); ++n) {
    const Span queries = queries_of(f, n), keys = keys_of(f, n);
    const std::int64_t batch = f.cu_seqlens_query ? 0 : n;
    for (std::int64_t kv_head = 0; kv_head < c.kv_heads; ++kv_head) {
      std::vector<bool> key_is_seen(static_cast<std::size_t>(keys.count));
      for (std::int64_t h = kv_head * c.heads / c.kv_heads; h < (kv_head + 1) * c.heads / c.kv_heads; ++h) {
        for (std::int64_t i = 0; i < queries.count; ++i) {
          bool query_sees = false;
          for (std::int64_t j = 0; j < keys.count; ++j) {
            if (sees(f, {n, h, i, j})) {
              query_sees = key_is_seen[static_cast<std::size_t>(j)] = true;
            } else if (own_elements && f.attn_mask.dtype != DType::boolean &&
                       mask_at(f, {n, h, i, j}) != -kInfinity) {
              set(g.attn_mask, {n, h, i, j}, kNaN);
            }
          }
          if (query_sees || c.sinks) continue;  // a sink is seen always
          blind.push_back({batch, h, queries.first + i});
          fill_row(g.query, blind.back(), kNaN);
          fill_row(dirty.args.grad_out, blind.back(), i % 2 == 0 ? kNaN : kInfinity);
        }
      }
      for (std::int64_t j = 0; j < keys.count; ++j) {
        if (key_is_seen[static_cast<std::size_t>(j)]) continue;
        fill_row(g.key, {batch, kv_head, keys.first + j}, j % 2 == 0 ? kNaN : kInfinity);
        fill_row(g.value, {batch, kv_head, keys.first + j}, j % 3 == 0 ? kInfinity : kNaN);
      }
    }
  }
  for (const Target& target : targets_of(dtype)) {
    SCOPED_TRACE(target.name);
    ASSERT_TRUE(run_attention(target, f));
    ASSERT_TRUE(run_backward(target, data.args));
    const Gradients clean = gradients_of(data.args);
    ASSERT_TRUE(run_attention(target, g));
    const double any[] = {-kInfinity, 0, -1e9, kInfinity, kNaN};
    for (std::size_t i = 0; i < blind.size(); ++i) set(g.lse, blind[i], any[i % 5]);
    const Status status = run_backward(target, dirty.args);
    ASSERT_TRUE(status) << status.message();
    EXPECT_EQ(difference(clean, dirty.args), "");
  }
}

INSTANTIATE_TEST_SUITE_P(Table, AttentionBackwardExcluded, in_every_dtype(cases_with_exclusions()),
                         name_of_case_and_dtype);

// A small causal problem, worked out by hand: 3 queries, 4 keys, query i sees keys 0 to i + 1.
class AttentionBackwardDependence : public testing::Test {
 protected:
  static constexpr std::int64_t kQueries = 3, kKeys = 4, kDim = 2;

  // Where gradients are not finite: queries, keys for grad_key, and [key][column] for grad_value.
  struct Reached {
    std::vector<std::int64_t> queries, keys, values, value_columns{0, 1};
    std::vector<Index> mask;
    bool sink = false;
  };

  void expect(const char* what, const TensorView& view, const Index& at, const Reached& reached) {
    SCOPED_TRACE(what);
    ASSERT_TRUE(attention_reference(data_.args.forward));
    const double healthy = get(view, at);
    set(view, at, kNaN);
    Gradients is;
    ASSERT_TRUE(exact_backward(data_.args, &is, true));
    set(view, at, healthy);
    const auto has = [](const auto& list, auto x) {
      return std::find(list.begin(), list.end(), x) != list.end();
    };
    for (std::int64_t d = 0; d < kDim; ++d) {
      for (std::int64_t i = 0; i < kQueries; ++i)
        EXPECT_EQ(std::isnan(is[kQuery][i * kDim + d]), has(reached.queries, i)) << "query " << i;
      for (std::int64_t j = 0; j < kKeys; ++j) {
        EXPECT_EQ(std::isnan(is[kKey][j * kDim + d]), has(reached.keys, j)) << "key " << j;
        EXPECT_EQ(std::isnan(is[kValue][j * kDim + d]),
                  has(reached.values, j) && has(reached.value_columns, d))
            << "value " << j << " column " << d;
      }
    }
    for (std::int64_t i = 0; i < kQueries; ++i)
      for (std::int64_t j = 0; j < kKeys; ++j)
        EXPECT_EQ(std::isnan(is[kMask][i * kKeys + j]), has(reached.mask, Index{0, 0, i, j}))
            << "mask " << i << " " << j;
    EXPECT_EQ(std::isnan(is[kSinks][0]), reached.sink);
  }

  AttentionBackwardData data_{{.name = "dependence",
                               .seq_q = kQueries,
                               .seq_k = kKeys,
                               .dim = kDim,
                               .dim_v = kDim,
                               .causal = Causal::bottom_right,
                               .mask = {.kind = Mask::Kind::f64},
                               .sinks = true},
                              DType::f64};
};

TEST_F(AttentionBackwardDependence, OfTheReference) {
  const AttentionBackwardArgs& args = data_.args;
  for_each_index(args.forward.attn_mask, [&](const Index& at) { set(args.forward.attn_mask, at, 0.5); });
  // P and dS of key 2 in the rows that see it, 1 and 2.
  expect("key", args.forward.key, {0, 0, 2, 1}, {{1, 2}, {2}, {2}, {0, 1}, {{0, 0, 1, 2}, {0, 0, 2, 2}}});
  // dP only: grad_value knows nothing of V.
  expect("value", args.forward.value, {0, 0, 2, 1}, {{1, 2}, {2}, {}, {}, {{0, 0, 1, 2}, {0, 0, 2, 2}}});
  // P and dS of row 1, which sees keys 0 to 2.
  const std::vector<Index> row{{0, 0, 1, 0}, {0, 0, 1, 1}, {0, 0, 1, 2}};
  expect("query", args.forward.query, {0, 0, 1, 0}, {{1}, {0, 1, 2}, {0, 1, 2}, {0, 1}, row});
  // D of row 1, and its own column of grad_value.
  expect("grad_out", args.grad_out, {0, 0, 1, 0}, {{1}, {0, 1, 2}, {0, 1, 2}, {0}, row, true});
  expect("out", args.forward.out, {0, 0, 1, 0}, {{1}, {0, 1, 2}, {}, {}, row, true});
  expect("grad_lse", args.grad_lse, {0, 0, 1}, {{1}, {0, 1, 2}, {}, {}, row, true});
  expect("lse", args.forward.lse, {0, 0, 1}, {{1}, {0, 1, 2}, {0, 1, 2}, {0, 1}, row, true});
  expect("mask", args.forward.attn_mask, {0, 0, 1, 2}, {{1}, {2}, {2}, {0, 1}, {{0, 0, 1, 2}}});
  expect("sink", args.forward.sinks, {0}, {{}, {}, {}, {}, {}, true});
  // Excluded by causality, mask and all.
  expect("excluded mask", args.forward.attn_mask, {0, 0, 1, 3}, {});
}

// A sink far below every score changes nothing; far above, it takes all the weight.
TEST(AttentionBackwardSinks, FarBelowAndFarAbove) {
  const AttentionCase c{.name = "sinks",
                        .batch = 2,
                        .heads = 4,
                        .kv_heads = 2,
                        .seq_q = 40,
                        .seq_k = 130,
                        .causal = Causal::bottom_right,
                        .sinks = true};
  for (DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    const AttentionBackwardData data(c, dtype);
    AttentionBackwardArgs without = data.args;
    without.forward.sinks = without.grad_sinks = TensorView();
    for (const Target& target : targets_of(dtype)) {
      SCOPED_TRACE(target.name + " " + name_of(dtype));
      ASSERT_TRUE(run_attention(target, without.forward));
      ASSERT_TRUE(run_backward(target, without));
      const Gradients clean = gradients_of(without);
      for (double sink : {-1000.0, -kInfinity}) {
        for (std::int64_t h = 0; h < c.heads; ++h) set(data.args.forward.sinks, {h}, sink);
        ASSERT_TRUE(run_attention(target, data.args.forward));
        ASSERT_TRUE(run_backward(target, data.args));
        const Gradients is = gradients_of(data.args);
        for (int i = 0; i < kSinks; ++i) EXPECT_TRUE(same_bits(is[i], clean[i])) << kGradientNames[i];
        EXPECT_EQ(is[kSinks], std::vector<double>(4)) << sink;
      }
      for (std::int64_t h = 0; h < c.heads; ++h) set(data.args.forward.sinks, {h}, 1000);
      ASSERT_TRUE(run_attention(target, data.args.forward));
      ASSERT_TRUE(run_backward(target, data.args));
      const Gradients is = gradients_of(data.args);
      for (int i = 0; i < kSinks; ++i)
        EXPECT_EQ(is[i], std::vector<double>(is[i].size())) << kGradientNames[i];
      // lse is the sink.
      for (std::int64_t h = 0; h < c.heads; ++h) {
        double sum = 0;
        for (std::int64_t b = 0; b < c.batch; ++b)
          for (std::int64_t i = 0; i < c.seq_q; ++i) sum += get(data.args.grad_lse, {b, h, i});
        EXPECT_NEAR(is[kSinks][static_cast<std::size_t>(h)], sum, 1e-4);
      }
    }
  }
}

}  // namespace
}  // namespace tileformer::test
