// permute_tokens and unpermute_tokens with its gradients on every unit: order, sums, rows without a pair,
// NaN, threads.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>

#include "base/topology.h"
#include "moe_permute_data.h"
#include "reversed_executor.h"

namespace tileformer::test {
namespace {

std::vector<PermuteCase> cases() {
  std::vector<PermuteCase> all;
  for (DType dtype : {DType::f32, DType::f16, DType::bf16})
    for (std::int64_t hidden : {1, 7, 8, 31, 64, 200})
      for (std::int64_t k : {1, 3, 9}) all.push_back({.hidden = hidden, .k = k, .dtype = dtype});
  for (DType weights : {DType::f16, DType::bf16}) all.push_back({.weight_dtype = weights});
  all.push_back({.tokens = 0});
  all.push_back({.hidden = 0});
  all.push_back({.k = 0});
  all.push_back({.tokens = 100, .experts = 1, .k = 1});
  return all;
}

std::string name_of(const PermuteCase& c) {
  return std::to_string(c.tokens) + " tokens of " + std::to_string(c.hidden) + ", k " + std::to_string(c.k) +
         " " + tileformer::name_of(c.dtype);
}

void expect_permuted(const PermuteTokensArgs& args) {
  const std::int64_t tokens = args.tokens.shape[0], k = args.experts.shape[1], hidden = args.tokens.shape[1];
  const std::int64_t num_experts = args.counts.shape[0];
  std::int64_t r = 0;
  for (std::int64_t e = 0; e < num_experts; ++e) {
    const std::int64_t first = r;
    for (std::int64_t t = 0; t < tokens; ++t) {
      for (std::int64_t j = 0; j < k; ++j) {
        if (get(args.experts, {t, j}) != double(e)) continue;
        ASSERT_EQ(get(args.source, {r}), double(t * k + j));
        for (std::int64_t d = 0; d < hidden; ++d) ASSERT_EQ(get(args.rows, {r, d}), get(args.tokens, {t, d}));
        ++r;
      }
    }
    ASSERT_EQ(get(args.counts, {e}), double(r - first));
  }
  for (; r < tokens * k; ++r) {
    ASSERT_EQ(get(args.source, {r}), -1);
    for (std::int64_t d = 0; d < hidden; ++d) ASSERT_EQ(get(args.rows, {r, d}), 0);
  }
}

TEST(MoePermute, RowsInTheOrderOfExperts) {
  for (PermuteCase c : cases()) {
    for (DType dtype : {c.dtype, DType::f64}) {
      c.dtype = dtype;
      for (Edge edge : {Edge::begin, Edge::end}) {
        const PermuteData data(c, edge);
        for (const PermuteTarget& target : permute_targets()) {
          SCOPED_TRACE(target.name + " " + name_of(c));
          const Status status = run_permute(target, data.permute);
          ASSERT_TRUE(status) << status.message();
          expect_permuted(data.permute);
          EXPECT_TRUE(data.clear_outputs()) << "wrote between the elements of an output";
        }
      }
    }
  }
}

// Past the caches, where rows are aligned for it and where they are not.
TEST(MoePermute, MoreRowsThanTheCacheHolds) {
  for (std::int64_t hidden : {1024, 1021}) {
    const auto tokens = static_cast<std::int64_t>(cpu_topology().l3) / 2 / hidden + 1;
    std::vector<std::uint16_t> in(std::size_t(tokens * hidden)), out(in.size());
    for (std::size_t i = 0; i < in.size(); ++i) in[i] = static_cast<std::uint16_t>(i * 2654435761u >> 9);
    std::vector<std::int32_t> experts(static_cast<std::size_t>(tokens));
    for (std::int64_t t = 0; t < tokens; ++t) experts[std::size_t(t)] = t % 2 == 0 ? 1 : 0;
    std::vector<std::int64_t> counts(2), source(experts.size());
    PermuteTokensArgs args;
    args.tokens = TensorView::dense(in.data(), DType::bf16, {tokens, hidden});
    args.experts = TensorView::dense(experts.data(), DType::i32, {tokens, 1});
    args.rows = TensorView::dense(out.data(), DType::bf16, {tokens, hidden});
    args.counts = TensorView::dense(counts.data(), DType::i64, {2});
    args.source = TensorView::dense(source.data(), DType::i64, {tokens});
    ASSERT_TRUE(permute_tokens(args, serial_executor()));
    for (std::int64_t r = 0; r < tokens; ++r) {
      const std::int64_t t = r < counts[0] ? 2 * r + 1 : 2 * (r - counts[0]);
      ASSERT_EQ(source[std::size_t(r)], t);
      ASSERT_TRUE(
          std::equal(in.begin() + t * hidden, in.begin() + (t + 1) * hidden, out.begin() + r * hidden));
    }
  }
}

// The same numbers in fp64.
class ExactUnpermute {
 public:
  UnpermuteTokensBackwardArgs args;
  TensorView out;

  explicit ExactUnpermute(const PermuteData& data) : args(data.backward) {
    args.rows = widened(args.rows);
    args.weights = widened(args.weights);
    args.grad_out = widened(args.grad_out);
    out = empty(args.grad_out);
    args.grad_rows = empty(args.rows);
    args.grad_weights = empty(args.weights);
    EXPECT_TRUE(unpermute_tokens_reference({args.rows, args.source, args.weights, out}));
    EXPECT_TRUE(unpermute_tokens_backward_reference(args));
  }

 private:
  TensorView empty(const TensorView& like) {
    return tensors_.allocate_dense(DType::f64, 2, {like.shape[0], like.shape[1]});
  }
  TensorView widened(const TensorView& from) {
    const TensorView to = empty(from);
    for_each_index(from, [&](const Index& at) { set(to, at, get(from, at)); });
    return to;
  }

  GuardedTensors tensors_{Edge::end};
};

double rounding(DType dtype) { return dtype == DType::bf16 ? 0x1p-8 : dtype == DType::f16 ? 0x1p-11 : 1e-6; }

void expect_near(const TensorView& is, const TensorView& exact) {
  for_each_index(exact, [&](const Index& at) {
    const double x = get(exact, at);
    ASSERT_NEAR(get(is, at), x, rounding(is.dtype) * std::abs(x) + 3e-5);
  });
}

TEST(MoeUnpermute, SumsAndGradients) {
  for (const PermuteCase& c : cases()) {
    for (Edge edge : {Edge::begin, Edge::end}) {
      const PermuteData data(c, edge);
      ASSERT_TRUE(permute_tokens(data.permute, serial_executor()));
      data.take_source();
      const ExactUnpermute exact(data);
      for (const PermuteTarget& target : permute_targets()) {
        SCOPED_TRACE(target.name + " " + name_of(c));
        data.clear_outputs();
        const Status status = run_permute(target, data.unpermute);
        ASSERT_TRUE(status) << status.message();
        ASSERT_TRUE(run_permute(target, data.backward));
        expect_near(data.unpermute.out, exact.out);
        expect_near(data.backward.grad_rows, exact.args.grad_rows);
        expect_near(data.backward.grad_weights, exact.args.grad_weights);
        EXPECT_TRUE(data.clear_outputs()) << "wrote between the elements of an output";
      }
    }
  }
}

// By the definition, from experts alone.
TEST(MoeUnpermute, ReferenceIsTheSumOverExperts) {
  const PermuteData data(
      {.tokens = 9, .hidden = 6, .dtype = DType::f64, .weight_dtype = DType::f64, .spare_rows = 0});
  ASSERT_TRUE(permute_tokens(data.permute, serial_executor()));
  data.take_source();
  UnpermuteTokensArgs args = data.unpermute;
  args.rows = data.permute.rows;
  ASSERT_TRUE(unpermute_tokens(args, serial_executor()));
  for_each_index(args.out, [&](const Index& at) {
    double share = 0;
    for (std::int64_t j = 0; j < 3; ++j) {
      const double e = get(data.permute.experts, {at[0], j});
      if (e >= 0 && e < 5) share += get(args.weights, {at[0], j});
    }
    EXPECT_NEAR(get(args.out, at), share * get(data.permute.tokens, at), 1e-12);
  });
  // <grad_out, out> = <grad_rows, rows> = <grad_weights, weights>: the sum is linear in both.
  ASSERT_TRUE(unpermute_tokens(data.unpermute, serial_executor()));
  ASSERT_TRUE(unpermute_tokens_backward(data.backward, serial_executor()));
  const auto product = [](const TensorView& a, const TensorView& b) {
    double sum = 0;
    for_each_index(a, [&](const Index& at) { sum += get(a, at) * get(b, at); });
    return sum;
  };
  const double expected = product(data.backward.grad_out, data.unpermute.out);
  EXPECT_NEAR(product(data.backward.grad_rows, data.unpermute.rows), expected, 1e-10);
  EXPECT_NEAR(product(data.backward.grad_weights, data.unpermute.weights), expected, 1e-10);
}

TEST(MoeUnpermute, RowsWithoutAPairHaveNoInfluence) {
  for (DType dtype : {DType::f32, DType::f64}) {
    const PermuteData data({.dtype = dtype});
    ASSERT_TRUE(permute_tokens(data.permute, serial_executor()));
    data.take_source();
    std::int64_t without = 0;
    for (std::int64_t r = 0; r < data.unpermute.rows.shape[0]; ++r) {
      if (get(data.unpermute.source, {r}) >= 0) continue;
      ++without;
      for (std::int64_t d = 0; d < 40; ++d) set(data.unpermute.rows, {r, d}, std::nan(""));
    }
    ASSERT_GT(without, 2);
    for (const PermuteTarget& target : permute_targets()) {
      ASSERT_TRUE(run_permute(target, data.unpermute));
      ASSERT_TRUE(run_permute(target, data.backward));
      for (const TensorView& result :
           {data.unpermute.out, data.backward.grad_rows, data.backward.grad_weights})
        for (double x : elements_of(result)) ASSERT_TRUE(std::isfinite(x));
      for (std::int64_t r = 0; r < data.unpermute.rows.shape[0]; ++r)
        if (get(data.unpermute.source, {r}) < 0) {
          EXPECT_EQ(get(data.backward.grad_rows, {r, 5}), 0);
        }
    }
  }
}

TEST(MoeUnpermute, NaNStaysWithItsToken) {
  const PermuteData data({});
  ASSERT_TRUE(permute_tokens(data.permute, serial_executor()));
  data.take_source();
  set(data.unpermute.rows, {0, 3}, std::nan(""));
  const auto token = static_cast<std::int64_t>(get(data.unpermute.source, {0})) / 3;
  for (const PermuteTarget& target : permute_targets()) {
    ASSERT_TRUE(run_permute(target, data.unpermute));
    for_each_index(data.unpermute.out, [&](const Index& at) {
      EXPECT_EQ(std::isnan(get(data.unpermute.out, at)), at[0] == token && at[1] == 3);
    });
  }
}

TEST(MoeUnpermute, SameBitsForAnyNumberOfThreads) {
  const std::unique_ptr<Executor> three = make_thread_pool(3);
  ReversedExecutor reversed;
  const PermuteData data({.tokens = 500, .hidden = 520, .k = 4});
  for (const PermuteTarget& target : permute_targets()) {
    std::vector<std::vector<double>> first;
    for (Executor* executor : {&serial_executor(), three.get(), static_cast<Executor*>(&reversed)}) {
      data.clear_outputs();
      ASSERT_TRUE(run_permute(target, data.permute, *executor));
      data.take_source();
      ASSERT_TRUE(run_permute(target, data.unpermute, *executor));
      ASSERT_TRUE(run_permute(target, data.backward, *executor));
      std::vector<std::vector<double>> results;
      for (const TensorView& result : {data.permute.rows, data.permute.source, data.unpermute.out,
                                       data.backward.grad_rows, data.backward.grad_weights})
        results.push_back(elements_of(result));
      if (first.empty()) first = results;
      for (std::size_t i = 0; i < results.size(); ++i) EXPECT_TRUE(same_bits(results[i], first[i]));
    }
  }
}

TEST(MoeUnpermute, EachGradientAlone) {
  const PermuteData data({});
  ASSERT_TRUE(permute_tokens(data.permute, serial_executor()));
  data.take_source();
  for (const PermuteTarget& target : permute_targets()) {
    ASSERT_TRUE(run_permute(target, data.backward));
    const std::vector<double> rows = elements_of(data.backward.grad_rows);
    const std::vector<double> weights = elements_of(data.backward.grad_weights);
    UnpermuteTokensBackwardArgs args = data.backward;
    data.clear_outputs();
    args.grad_weights = {};
    ASSERT_TRUE(run_permute(target, args));
    EXPECT_TRUE(same_bits(elements_of(data.backward.grad_rows), rows));
    args.grad_rows = {};
    args.grad_weights = data.backward.grad_weights;
    ASSERT_TRUE(run_permute(target, args));
    EXPECT_TRUE(same_bits(elements_of(data.backward.grad_weights), weights));
  }
}

}  // namespace
}  // namespace tileformer::test
