// NaN and Inf: in a position that nobody sees they change no bit; in one that is seen they reach the rows
// that see it and no others. Over the whole case table, one poisoned key at a time.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "attention_data.h"
#include "attention_exclusions.h"
#include "attention_runner.h"
#include "attention_visible.h"
#include "case_params.h"
#include "exact_attention.h"
#include "ops/attention/case_table.h"

namespace tileformer::test {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// The first element of out that is not as it should be: non-finite where reached(head, row in its view,
// column) says so (NaN, if only_nan), the same bits as before elsewhere. Empty if there is none.
template <typename Reached>
std::string violation(const AttentionArgs& args, const AttentionResult& before, bool only_nan,
                      Reached reached) {
  std::ostringstream text;
  std::size_t element = 0;
  for_each_index(args.out, [&](const Index& at) {
    const double is = get(args.out, at), was = before.out[element++];
    const bool good = !reached(at) ? same_bits(is, was) : only_nan ? std::isnan(is) : !std::isfinite(is);
    if (good || text.tellp() != 0) return;
    text << "batch " << at[0] << " head " << at[1] << " row " << at[2] << " column " << at[3]
         << (reached(at) ? " is reached" : " is not reached") << ", was " << was << ", is " << is;
  });
  return text.str();
}

// The keys that stand in one place of key and value: of one sequence, or of those that share a page.
class Poisoned {
 public:
  Poisoned(const AttentionArgs& args, const Index& place) : args_(args) {
    for (std::int64_t n = 0; n < sequences_of(args); ++n) {
      for (std::int64_t j = 0; j < keys_of(args, n).count; ++j) {
        if (place_of_key(args, n, place[1], j) == place) keys_.push_back({n, j});
      }
    }
  }
  // Whether the row of out at that index sees one of them.
  bool seen_by(const Index& out) const {
    for (const auto& [n, j] : keys_) {
      const Span queries = queries_of(args_, n);
      const std::int64_t i = out[2] - queries.first;
      if (out[0] == (args_.cu_seqlens_query ? 0 : n) && i >= 0 && i < queries.count &&
          sees(args_, {n, out[1], i, j}))
        return true;
    }
    return false;
  }

 private:
  const AttentionArgs& args_;
  std::vector<std::pair<std::int64_t, std::int64_t>> keys_;  // sequence, key
};

class AttentionNaN : public testing::TestWithParam<CaseAndDType> {};

TEST_P(AttentionNaN, ReachesExactlyTheRowsThatSeeIt) {
  const auto& [c, dtype] = GetParam();
  const AttentionData data(c, dtype);
  const AttentionArgs& args = data.args;
  const std::int64_t group = c.heads / c.kv_heads;
  for (const Target& target : targets()) {
    SCOPED_TRACE(target.name);
    Status status = run_attention(target, args);
    ASSERT_TRUE(status) << status.message();
    const AttentionResult clean = result_of(args);
    for (std::int64_t n = 0; n < c.sequences(); ++n) {
      const Span keys = keys_of(args, n);
      if (keys.count == 0) continue;
      const auto expect_poison = [&](const TensorView& view, const TensorView& scale, std::int64_t key,
                                     std::int64_t column, double poison) {
        SCOPED_TRACE("sequence " + std::to_string(n) + " key " + std::to_string(key));
        Index at = place_of_key(args, n, 0, key);
        const Poisoned slots(args, at);
        at[3] = column;
        // A code may have no such value; its scale has.
        const bool whole_row = scale && (view.dtype == DType::i8 || !std::isnan(poison));
        const TensorView& poisoned = whole_row ? scale : view;
        const auto reached = [&](const Index& out) {
          const bool in_column = &view == &args.key || whole_row || c.value_in_key || out[3] == column;
          return out[1] / group == 0 && in_column && slots.seen_by(out);
        };
        const double healthy = get(poisoned, at);
        set(poisoned, at, poison);
        status = run_attention(target, args);
        set(poisoned, at, healthy);
        ASSERT_TRUE(status) << status.message();
        // An infinite scale times a code of zero is NaN.
        EXPECT_EQ(violation(args, clean, std::isnan(poison), reached), "");
      };
      // First, middle and last key; which of them gets which poison varies.
      const std::int64_t at[] = {0, keys.count / 2, keys.count - 1};
      const std::int64_t turn = n + c.seq_q + c.seq_k;
      expect_poison(args.key, args.key_scale, at[turn % 3], c.dim / 2, std::nan(""));
      expect_poison(args.value, args.value_scale, at[(turn + 1) % 3], c.dim_v - 1, std::nan(""));
      // An infinity in K as well may take its key away.
      if (!c.value_in_key)
        expect_poison(args.value, args.value_scale, at[(turn + 2) % 3], c.dim_v / 2, kInfinity);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Table, AttentionNaN, in_every_dtype(cases_with_exclusions()),
                         name_of_case_and_dtype);

INSTANTIATE_TEST_SUITE_P(Pages, AttentionNaN,
                         in_every_dtype(cases_with_exclusions(attention::paged_attention_cases())),
                         name_of_case_and_dtype);

// Places in pages that hold no sequence's key, and pages of nobody, are not read. (The case table has NaN
// there.)
TEST(AttentionNaNPages, InfinityWhereNoKeyIsChangesNothing) {
  for (const AttentionCase& c : attention::paged_attention_cases()) {
    if (!c.name.starts_with("paged_dtype_") && !c.name.starts_with("paged_size64_")) continue;
    for (DType dtype : {DType::f32, DType::bf16}) {
      const AttentionData data(c, dtype);
      for (const Target& target : targets_of(dtype)) {
        SCOPED_TRACE(target.name + " " + c.name + " " + name_of(dtype));
        ASSERT_TRUE(run_attention(target, data.args));
        const AttentionResult clean = result_of(data.args);
        const AttentionData other(c, dtype);  // the same values
        for (const auto& [pages, scale] : {std::pair{&other.args.key, &other.args.key_scale},
                                           {&other.args.value, &other.args.value_scale}}) {
          const TensorView& poisoned = *scale ? *scale : *pages;
          for_each_index(poisoned, [&](const Index& at) {
            if (std::isnan(get(poisoned, at))) set(poisoned, at, kInfinity);
          });
        }
        ASSERT_TRUE(run_attention(target, other.args));
        EXPECT_TRUE(same_bits(result_of(other.args).out, clean.out));
        EXPECT_TRUE(same_bits(result_of(other.args).lse, clean.lse));
      }
    }
  }
}

// Rows behind the last key, in the same allocation, are no keys.
TEST(AttentionNaNTail, RowsBehindTheLastKeyAreNotRead) {
  for (DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    for (std::int64_t keys : {1, 15, 33, 63}) {
      const AttentionCase c{.name = "cache", .heads = 2, .seq_q = 19, .seq_k = 64};
      const AttentionData data(c, dtype);
      AttentionArgs args = data.args;
      args.key.shape[2] = args.value.shape[2] = keys;
      for (const Target& target : targets()) {
        SCOPED_TRACE(target.name + " " + name_of(dtype) + " " + std::to_string(keys));
        ASSERT_TRUE(run_attention(target, args));
        const AttentionResult clean = result_of(args);
        for (double poison : {std::nan(""), kInfinity}) {
          AttentionArgs poisoned = args;
          const AttentionData other(c, dtype);  // the same values
          poisoned.key.data = other.args.key.data;
          poisoned.value.data = other.args.value.data;
          for (const TensorView* view : {&other.args.key, &other.args.value}) {
            for_each_index(*view, [&](const Index& at) {
              if (at[2] >= keys) set(*view, at, poison);
            });
          }
          ASSERT_TRUE(run_attention(target, poisoned));
          EXPECT_TRUE(same_bits(result_of(poisoned).out, clean.out));
          EXPECT_TRUE(same_bits(result_of(poisoned).lse, clean.lse));
        }
      }
    }
  }
}

// A NaN in a query, a float mask or a sink stays in the rows that use it.
TEST(AttentionNaNInputs, StayInTheirRows) {
  for (DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    const AttentionCase c{.name = "inputs",
                          .heads = 2,
                          .seq_q = 21,
                          .seq_k = 50,
                          .causal = Causal::bottom_right,
                          .mask = {.kind = Mask::Kind::f32, .heads = true},
                          .sinks = true};
    for (const Target& target : targets()) {
      SCOPED_TRACE(target.name + " " + name_of(dtype));
      const AttentionData data(c, dtype);
      const AttentionArgs& args = data.args;
      set(args.attn_mask, {0, 0, 7, 3}, 0);
      ASSERT_TRUE(run_attention(target, args));
      const AttentionResult clean = result_of(args);
      const auto expect_nan_rows = [&](auto is_poisoned) {
        ASSERT_TRUE(run_attention(target, args));
        EXPECT_EQ(violation(args, clean, true, [&](const Index& at) { return is_poisoned(at[1], at[2]); }),
                  "");
      };
      const double q = get(args.query, {0, 1, 5, 3}), mask = get(args.attn_mask, {0, 0, 7, 3});
      const double sink = get(args.sinks, {1});
      set(args.query, {0, 1, 5, 3}, std::nan(""));
      expect_nan_rows([](std::int64_t h, std::int64_t i) { return h == 1 && i == 5; });
      set(args.query, {0, 1, 5, 3}, q);
      set(args.attn_mask, {0, 0, 7, 3}, std::nan(""));
      expect_nan_rows([](std::int64_t h, std::int64_t i) { return h == 0 && i == 7; });
      set(args.attn_mask, {0, 0, 7, 3}, mask);
      set(args.sinks, {1}, std::nan(""));
      expect_nan_rows([](std::int64_t h, std::int64_t) { return h == 1; });
      set(args.sinks, {1}, sink);
    }
  }
}

}  // namespace
}  // namespace tileformer::test
