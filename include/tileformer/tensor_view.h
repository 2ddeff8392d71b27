// A tensor that somebody else owns: pointer, element type, shape and strides.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <utility>

#include "tileformer/dtype.h"

namespace tileformer {

struct TensorView {
  static constexpr int kMaxRank = 4;

  void* data = nullptr;
  DType dtype = DType::f32;
  int rank = 0;
  std::array<std::int64_t, kMaxRank> shape{};
  std::array<std::int64_t, kMaxRank> stride{};  // in elements; 0 broadcasts, negative is allowed
  bool present = false;                         // an absent view stands for an argument that was not given

  TensorView() = default;
  TensorView(void* p, DType t, std::initializer_list<std::int64_t> sizes,
             std::initializer_list<std::int64_t> strides)
      : data(p), dtype(t), rank(static_cast<int>(sizes.size())), present(true) {
    int i = 0;
    for (std::int64_t s : sizes) shape[i++] = s;
    i = 0;
    for (std::int64_t s : strides) stride[i++] = s;
  }

  // Row-major and dense. Constness is the caller's business: operators write to outputs only.
  static TensorView dense(const void* p, DType t, std::initializer_list<std::int64_t> sizes) {
    TensorView v;
    v.data = const_cast<void*>(p);
    v.dtype = t;
    v.rank = static_cast<int>(sizes.size());
    v.present = true;
    int i = 0;
    for (std::int64_t s : sizes) v.shape[i++] = s;
    std::int64_t step = 1;
    for (i = v.rank - 1; i >= 0; --i) {
      v.stride[i] = step;
      step *= v.shape[i];
    }
    return v;
  }

  explicit operator bool() const { return present; }

  std::int64_t elements() const {
    std::int64_t n = 1;
    for (int i = 0; i < rank; ++i) n *= shape[i];
    return n;
  }

  // Swaps two dimensions: [batch, seq, heads, dim] as [batch, heads, seq, dim] without a copy.
  TensorView transposed(int a, int b) const {
    TensorView v = *this;
    std::swap(v.shape[a], v.shape[b]);
    std::swap(v.stride[a], v.stride[b]);
    return v;
  }
};

}  // namespace tileformer
