// The sort of (token, slot) pairs by expert: order, counts, indices that name no expert, wrong indices.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <tuple>
#include <vector>

#include "guarded_tensors.h"
#include "ops/moe/dispatch.h"

namespace tileformer::test {
namespace {

using moe::Dispatch;
using moe::Pair;

// Sorted by the definition.
struct Expected {
  std::vector<std::int64_t> offset;
  std::vector<std::tuple<std::int64_t, std::int64_t, std::int64_t>> order;  // expert, token, slot

  Expected(const TensorView& experts, std::int64_t num_experts)
      : offset(static_cast<std::size_t>(num_experts) + 2) {
    for (std::int64_t t = 0; t < experts.shape[0]; ++t) {
      for (std::int64_t j = 0; j < experts.shape[1]; ++j) {
        const auto e = static_cast<std::int64_t>(get(experts, {t, j}));
        order.emplace_back(e < 0 ? num_experts : e, t, j);
      }
    }
    std::sort(order.begin(), order.end());
    for (const auto& [e, t, j] : order)
      for (std::int64_t later = e + 1; later <= num_experts + 1; ++later) ++offset[std::size_t(later)];
  }
};

void expect_sorted(const TensorView& experts, std::int64_t num_experts, Edge edge) {
  const GuardedMemory offsets(static_cast<std::size_t>(num_experts + 2) * sizeof(std::int64_t), edge);
  const GuardedMemory pairs(static_cast<std::size_t>(experts.elements()) * sizeof(Pair), edge);
  const Dispatch sorted{static_cast<std::int64_t*>(offsets.data()), static_cast<Pair*>(pairs.data())};
  ASSERT_TRUE(moe::check_dispatch(experts, num_experts));
  const Status status = dispatch(experts, num_experts, sorted);
  ASSERT_TRUE(status) << status.message();
  const Expected expected(experts, num_experts);
  for (std::size_t e = 0; e < expected.offset.size(); ++e) ASSERT_EQ(sorted.offset[e], expected.offset[e]);
  for (std::size_t i = 0; i < expected.order.size(); ++i) {
    ASSERT_EQ(sorted.pair[i].token, std::get<1>(expected.order[i])) << "pair " << i;
    ASSERT_EQ(sorted.pair[i].slot, std::get<2>(expected.order[i])) << "pair " << i;
  }
}

TEST(MoeDispatch, SortsByExpertThenTokenThenSlot) {
  std::mt19937_64 random(1);
  const Sizes shapes[] = {{0, 2}, {5, 0}, {1, 1}, {7, 1}, {40, 3}, {300, 8}, {3, 300}};
  for (DType dtype : {DType::i32, DType::i64}) {
    for (const Sizes& shape : shapes) {
      for (std::int64_t num_experts : {1, 2, 8, 1000}) {
        for (const Sizes& stride : {Sizes{shape[1], 1}, Sizes{1, shape[0]}, Sizes{-2 * shape[1], -2}}) {
          for (Edge edge : {Edge::begin, Edge::end}) {
            GuardedTensors tensors(edge);
            const TensorView experts = tensors.allocate(dtype, 2, shape, stride);
            std::uniform_int_distribution<std::int64_t> index(-1, num_experts);
            for_each_index(experts, [&](const Index& at) { set(experts, at, double(index(random))); });
            expect_sorted(experts, num_experts, edge);
          }
        }
      }
    }
  }
}

TEST(MoeDispatch, BroadcastIndices) {
  std::int64_t row[] = {2, 0, 2};
  expect_sorted(TensorView(row, DType::i64, {4, 3}, {0, 1}), 3, Edge::end);
}

TEST(MoeDispatch, AllOfOneKind) {
  for (std::int64_t index : {-1, 0, 2, 3}) {
    const std::vector<std::int64_t> experts(20, index);
    expect_sorted(TensorView::dense(experts.data(), DType::i64, {10, 2}), 3, Edge::end);
  }
}

TEST(MoeDispatch, WrongIndices) {
  for (std::int64_t index : {std::int64_t{-2}, std::int64_t{9}, INT64_MIN, INT64_MAX}) {
    std::vector<std::int64_t> experts(12, 7), offset(10);
    experts[7] = index;
    std::vector<Pair> pairs(12, Pair{-5, -5});
    const TensorView view = TensorView::dense(experts.data(), DType::i64, {4, 3});
    const Status status = moe::dispatch(view, 8, {offset.data(), pairs.data()});
    EXPECT_EQ(status.code(), StatusCode::invalid_argument);
    EXPECT_EQ(status.message(), "experts: got " + std::to_string(index) +
                                    " in token 2, slot 1, expected 0 to 7, or -1 or 8 for no expert");
    for (const Pair& pair : pairs) EXPECT_EQ(pair.token, -5);
  }
}

TEST(MoeDispatch, WrongArguments) {
  std::int64_t data[6] = {};
  const TensorView good = TensorView::dense(data, DType::i64, {3, 2});
  TensorView rank = good, dtype = good, null = good, many = good;
  rank.rank = 1;
  dtype.dtype = DType::f32;
  null.data = nullptr;
  many.shape[0] = std::int64_t{1} << 31;
  many.stride[0] = 0;
  const std::pair<Status, const char*> cases[] = {
      {moe::check_dispatch({}, 8), "experts: got nothing, expected a tensor [tokens, k]"},
      {moe::check_dispatch(rank, 8), "experts: got 1 dimensions [3], expected 2 dimensions [tokens, k]"},
      {moe::check_dispatch(dtype, 8), "experts: got dtype float32, expected int32 or int64"},
      {moe::check_dispatch(null, 8),
       "experts: got a null pointer for shape [3, 2], expected memory for every element"},
      {moe::check_dispatch(many, 8), "experts: got 2147483648 tokens, expected at most 2147483647"},
      {moe::check_dispatch(good, 0), "num_experts: got 0, expected 1 to 2147483647"},
  };
  for (const auto& [status, message] : cases) {
    EXPECT_EQ(status.code(), StatusCode::invalid_argument);
    EXPECT_EQ(status.message(), message);
  }
}

}  // namespace
}  // namespace tileformer::test
