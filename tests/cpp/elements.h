// Elements of a view by index, and all of them in logical order.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <vector>

#include "base/element.h"
#include "tileformer/tensor_view.h"

namespace tileformer::test {

using Index = std::array<std::int64_t, TensorView::kMaxRank>;

inline std::int64_t offset_of(const TensorView& view, const Index& at) {
  std::int64_t offset = 0;
  for (int i = 0; i < view.rank; ++i) offset += at[i] * view.stride[i];
  return offset;
}

inline double get(const TensorView& view, const Index& at) {
  return load_element(view.data, view.dtype, offset_of(view, at));
}

inline void set(const TensorView& view, const Index& at, double x) {
  store_element(view.data, view.dtype, offset_of(view, at), x);
}

template <typename Visit>
void for_each_index(const TensorView& view, Visit visit) {
  Index at{};
  for (std::int64_t left = view.elements(); left > 0; --left) {
    visit(at);
    for (int i = view.rank - 1; i >= 0 && ++at[i] == view.shape[i]; --i) at[i] = 0;
  }
}

inline std::vector<double> elements_of(const TensorView& view) {
  std::vector<double> all;
  if (!view) return all;
  all.reserve(static_cast<std::size_t>(view.elements()));
  for_each_index(view, [&](const Index& at) { all.push_back(get(view, at)); });
  return all;
}

// Bit by bit, so that NaN equals NaN and 0 differs from -0.
inline bool same_bits(double a, double b) { return std::memcmp(&a, &b, sizeof a) == 0; }
inline bool same_bits(const std::vector<double>& a, const std::vector<double>& b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(double)) == 0);
}

}  // namespace tileformer::test
