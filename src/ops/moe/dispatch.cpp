#include "ops/moe/dispatch.h"

#include <string>

#include "base/check_view.h"

namespace tileformer::moe {
namespace {

constexpr std::int64_t kMaxIndex = INT32_MAX;  // of a Pair

Status outside(std::int64_t index, std::int64_t token, std::int64_t slot, std::int64_t num_experts) {
  const std::string n = std::to_string(num_experts);
  return wrong(
      "experts",
      std::to_string(index) + " in token " + std::to_string(token) + ", slot " + std::to_string(slot),
      "0 to " + std::to_string(num_experts - 1) + ", or -1 or " + n + " for no expert");
}

template <class Index>
Status count(const TensorView& experts, std::int64_t num_experts, std::int64_t* pairs_of) {
  const auto* index = static_cast<const Index*>(experts.data);
  for (std::int64_t e = 0; e <= num_experts; ++e) pairs_of[e] = 0;
  for (std::int64_t t = 0; t < experts.shape[0]; ++t) {
    for (std::int64_t j = 0; j < experts.shape[1]; ++j) {
      const std::int64_t e = index[t * experts.stride[0] + j * experts.stride[1]];
      if (e < -1 || e > num_experts) return outside(e, t, j, num_experts);
      ++pairs_of[e < 0 ? num_experts : e];
    }
  }
  return Status::ok();
}

// next[e]: where the next pair of expert e goes.
template <class Index>
void place(const TensorView& experts, std::int64_t num_experts, std::int64_t* next, Pair* pair) {
  const auto* index = static_cast<const Index*>(experts.data);
  for (std::int64_t t = 0; t < experts.shape[0]; ++t) {
    for (std::int64_t j = 0; j < experts.shape[1]; ++j) {
      const std::int64_t e = index[t * experts.stride[0] + j * experts.stride[1]];
      pair[next[e < 0 ? num_experts : e]++] = {static_cast<std::int32_t>(t), static_cast<std::int32_t>(j)};
    }
  }
}

// The counts stand one entry late, so that sums turn them into starts, and placing, which moves each start to
// the next expert's, into offsets.
template <class Index>
Status sort(const TensorView& experts, std::int64_t num_experts, const Dispatch& to) {
  if (Status s = count<Index>(experts, num_experts, to.offset + 1); !s) return s;
  std::int64_t start = 0;
  for (std::int64_t e = 1; e <= num_experts + 1; ++e) {
    const std::int64_t pairs = to.offset[e];
    to.offset[e] = start;
    start += pairs;
  }
  place<Index>(experts, num_experts, to.offset + 1, to.pair);
  to.offset[0] = 0;
  return Status::ok();
}

}  // namespace

Status check_dispatch(const TensorView& experts, std::int64_t num_experts) {
  if (num_experts < 1 || num_experts > kMaxIndex)
    return wrong("num_experts", std::to_string(num_experts), "1 to " + std::to_string(kMaxIndex));
  if (Status s = check_view("experts", experts, 2, "[tokens, k]"); !s) return s;
  if (experts.dtype != DType::i32 && experts.dtype != DType::i64)
    return wrong("experts", std::string("dtype ") + name_of(experts.dtype), "int32 or int64");
  for (int i = 0; i < 2; ++i)
    if (experts.shape[i] > kMaxIndex)
      return wrong("experts", std::to_string(experts.shape[i]) + (i == 0 ? " tokens" : " slots"),
                   "at most " + std::to_string(kMaxIndex));
  return Status::ok();
}

Status dispatch(const TensorView& experts, std::int64_t num_experts, const Dispatch& to) {
  return experts.dtype == DType::i32 ? sort<std::int32_t>(experts, num_experts, to)
                                     : sort<std::int64_t>(experts, num_experts, to);
}

}  // namespace tileformer::moe
