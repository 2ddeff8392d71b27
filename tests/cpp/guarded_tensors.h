// Tensors in guarded memory, each in an allocation of its own.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <vector>

#include "elements.h"
#include "guarded_memory.h"

namespace tileformer::test {

using Sizes = std::array<std::int64_t, TensorView::kMaxRank>;

// Row-major and without gaps.
inline Sizes dense_strides(int rank, const Sizes& shape) {
  Sizes stride{};
  std::int64_t step = 1;
  for (int i = rank - 1; i >= 0; --i) {
    stride[i] = step;
    step *= shape[i];
  }
  return stride;
}

class GuardedTensors {
 public:
  explicit GuardedTensors(Edge edge) : edge_(edge) {}

  // Memory for exactly what the strides reach. Strides may be negative: the view starts where index 0 lies.
  TensorView allocate(DType dtype, int rank, const Sizes& shape, const Sizes& stride) {
    TensorView view;
    view.dtype = dtype;
    view.rank = rank;
    view.present = true;
    std::int64_t below = 0, above = 0;
    for (int i = 0; i < rank; ++i) {
      view.shape[i] = shape[i];
      view.stride[i] = stride[i];
      const std::int64_t reach = (shape[i] - 1) * stride[i];
      (reach < 0 ? below : above) += reach;
    }
    const std::int64_t count = view.elements() == 0 ? 0 : above - below + 1;
    memory_.emplace_back(static_cast<std::size_t>(count) * size_of(dtype), edge_);
    const std::int64_t start = count == 0 ? 0 : -below * static_cast<std::int64_t>(size_of(dtype));
    view.data = static_cast<std::uint8_t*>(memory_.back().data()) + start;
    return view;
  }

  TensorView allocate_dense(DType dtype, int rank, const Sizes& shape) {
    return allocate(dtype, rank, shape, dense_strides(rank, shape));
  }

  // A tensor that clear_outputs() looks after.
  TensorView allocate_output(DType dtype, int rank, const Sizes& shape, const Sizes& stride) {
    const TensorView view = allocate(dtype, rank, shape, stride);
    outputs_.push_back({view, memory_.size() - 1});
    return view;
  }

  // Makes outputs unwritten again. False if memory between their elements had been written.
  bool clear_outputs() const {
    bool untouched = true;
    for (const auto& [view, memory] : outputs_) {
      const auto size = static_cast<std::int64_t>(size_of(view.dtype));
      for_each_index(view, [&](const Index& at) {
        std::memset(static_cast<std::uint8_t*>(view.data) + offset_of(view, at) * size, 0xFF,
                    static_cast<std::size_t>(size));
      });
      const auto* bytes = static_cast<const std::uint8_t*>(memory_[memory].data());
      untouched =
          untouched && std::all_of(bytes, bytes + memory_[memory].bytes(), [](auto b) { return b == 0xFF; });
    }
    return untouched;
  }

 private:
  struct Output {
    TensorView view;
    std::size_t memory;  // index into memory_
  };

  Edge edge_;
  std::vector<GuardedMemory> memory_;
  std::vector<Output> outputs_;
};

}  // namespace tileformer::test
