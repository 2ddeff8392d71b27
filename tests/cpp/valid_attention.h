// A correct call, and changes that make it one that is refused.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tileformer/attention.h"

namespace tileformer::test {

// A small correct problem: batch 2, 4 heads on 2, 3 queries, 5 keys, dim 8 and 6. Arguments point into one
// block of zeros, which no refused call reads as anything but integers.
struct Valid {
  std::vector<std::uint64_t> zeros = std::vector<std::uint64_t>(4096);
  std::vector<std::int32_t> ints{0, 1, 3, 0, 2, 5, 0, 4, 2, 3, 1, 9};
  AttentionArgs args;

  Valid() {
    args.query = view({2, 4, 3, 8});
    args.key = view({2, 2, 5, 8});
    args.value = view({2, 2, 5, 6});
    args.out = view({2, 4, 3, 6});
    args.lse = view({2, 4, 3});
  }
  TensorView view(std::initializer_list<std::int64_t> sizes, DType dtype = DType::f32) {
    return TensorView::dense(zeros.data(), dtype, sizes);
  }
  // int32 from the list of ints, starting at `first`.
  TensorView int_view(std::size_t first, std::initializer_list<std::int64_t> sizes) {
    return TensorView::dense(ints.data() + first, DType::i32, sizes);
  }
  // Makes the problem packed: batch 1, two sequences of 1 and 2 queries, 2 and 3 keys.
  void pack() {
    for (TensorView* t : {&args.query, &args.key, &args.value, &args.out, &args.lse}) t->shape[0] = 1;
    args.cu_seqlens_query = int_view(0, {3});
    args.cu_seqlens_key = int_view(3, {3});
  }
};

template <typename ValidCall>
struct RefusedChange {
  const char* name;
  std::function<void(ValidCall&)> change;
  std::string message;
  StatusCode code = StatusCode::invalid_argument;
};

template <typename ValidCall>
std::string name_of_refused(const testing::TestParamInfo<RefusedChange<ValidCall>>& info) {
  return info.param.name;
}

}  // namespace tileformer::test
