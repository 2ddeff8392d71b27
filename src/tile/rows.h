// Rows as packing takes them: in runs that stand one stride after another, so that a tensor and the pages of
// a cache are packed by the same code.
#pragma once

namespace tileformer::TILEFORMER_UNIT {

// Packing converts a run while it prefetches the next one; so many rows of 128 elements stay in L1.
inline constexpr int kRunRows = 16;

template <class T>
struct RowRun {
  using Element = typename T::Element;
  const Element* base = nullptr;
  std::int64_t stride = 0;
  const float* scales = nullptr;  // of rows of codes
  std::int64_t scale_stride = 0;

  TF_MEMBER const Element* row(int r) const { return base + r * stride; }
  TF_MEMBER float scale(int r) const {
    if constexpr (kIsCode<T>) return scales[r * scale_stride];
    return 1;
  }
};

// Rows of a tensor. What else stands for rows has the same run(): of rows i to i + kRunRows, i a multiple of
// it and row i one that exists.
template <class T>
struct StridedRows {
  const typename T::Element* base;
  std::int64_t stride;
  TF_MEMBER RowRun<T> run(int i) const { return {base + i * stride, stride}; }
};

}  // namespace tileformer::TILEFORMER_UNIT
