// Streamed weights that are stored across: neighbours in memory are elements of different rows, which are the
// lanes. A few lines of memory, each of one element of all rows, are multiplied together. Included by kernels
// only.
#pragma once

#include "ops/moe/common/streamed.h"

namespace tileformer::TILEFORMER_UNIT {

// Lines of memory that are summed before a sum goes to y. More would spare reads and writes of y, but lines
// often stand a power of two apart and push each other out of L1 (Zen 3: 16 lines, or asking for anything
// into L1 ahead, cost a fifth of the bandwidth).
inline constexpr int kColumnLines = 8;
// Packed rows that are multiplied together, at most.
inline constexpr int kColumnPairs = 6;

// Steps of columns in a cache line.
template <class T>
inline constexpr int kLineSteps = max_of(64 / static_cast<int>(sizeof(typename T::Element)) / kRowStep, 1);

// Steps that are multiplied together: a cache line of them, or as many as there are registers for.
template <class T>
TF_INLINE constexpr int steps_at_once(int n) {
  int c = kLineSteps<T>;
  while (c > 1 && 2 * c * (n + 1) + 1 > kVecRegisters) c /= 2;
  return c;
}

// y [N][C steps] += kColumnLines lines of memory times N packed rows. kAhead: the lines that come next are
// asked for, one cache line of each.
template <class T, int N, int C, bool kAhead>
TF_INLINE void add_lines(const typename T::Element* lines, std::int64_t stride, const Word* packed, int pairs,
                         float* y, std::int64_t y_stride) {
  using Product = RowProduct<T>;
  F sum[N][2 * C];
  TF_UNROLL for (int n = 0; n < N; ++n) TF_UNROLL for (int i = 0; i < 2 * C; ++i) sum[n][i] = zero();
  TF_NO_UNROLL for (int line = 0; line < kColumnLines; line += Product::kValueKeys) {
    const auto* at = lines + line * stride;
    if constexpr (kAhead)
      TF_UNROLL for (int i = 0; i < Product::kValueKeys; ++i) prefetch_far(at + (kColumnLines + i) * stride);
    typename Product::Vector w[C][2];
    TF_UNROLL for (int c = 0; c < C; ++c) Product::value(at + c * kRowStep, stride, w[c]);
    const Word* x = packed + line / kElementsPerWord * pairs;
    TF_UNROLL for (int n = 0; n < N; ++n) {
      const auto factor = Product::weight(x + n);
      TF_UNROLL for (int i = 0; i < 2 * C; ++i) sum[n][i] =
          Product::multiply(sum[n][i], factor, w[i / 2][i % 2]);
    }
  }
  TF_UNROLL for (int n = 0; n < N; ++n) TF_UNROLL for (int i = 0; i < 2 * C; ++i) {
    float* to = y + n * y_stride + i * kVecLanes;
    store(to, add(load(to), sum[n][i]));
  }
}

// What lacks lines or columns is copied, with zeros for what is not there.
template <class T, int N>
TF_NOINLINE void add_some_lines(const typename T::Element* at, std::int64_t stride, int lines,
                                std::int64_t columns, const Word* packed, int pairs, float* y,
                                std::int64_t y_stride) {
  typename T::Element copy[kColumnLines][kRowStep] = {};
  for (int i = 0; i < lines; ++i)
    __builtin_memcpy(copy[i], at + i * stride, min_of<std::int64_t>(columns, kRowStep) * sizeof(copy[0][0]));
  add_lines<T, N, 1, false>(copy[0], kRowStep, packed, pairs, y, y_stride);
}

// Lines from element k on, times N packed rows from `pair` on.
template <class T, int N>
TF_NOINLINE void column_run(const StreamedProduct& s, const typename T::Element* at, std::int64_t k,
                            int pair) {
  constexpr int C = steps_at_once<T>(N), kLine = kLineSteps<T> * kRowStep;
  const std::int64_t stride = s.w->weight.column;
  const Word* packed = s.packed + k / kElementsPerWord * s.pairs + pair;
  const int lines = static_cast<int>(min_of<std::int64_t>(s.elements - k, kColumnLines));
  float* y = s.y + pair * s.y_stride;
  int column = 0;
  if (TF_LIKELY(lines == kColumnLines))
    for (; column + kLine <= s.rows; column += kLine) {
      add_lines<T, N, C, true>(at + column, stride, packed, s.pairs, y + column, s.y_stride);
      TF_NO_UNROLL for (int c = C * kRowStep; c < kLine; c += C * kRowStep)
          add_lines<T, N, C, false>(at + column + c, stride, packed, s.pairs, y + column + c, s.y_stride);
    }
  for (; column < s.rows; column += kRowStep)
    add_some_lines<T, N>(at + column, stride, lines, s.rows - column, packed, s.pairs, y + column,
                         s.y_stride);
}

template <class T>
TF_NOINLINE void sums_of_columns(const StreamedProduct& s) {
  const moe::ExpertOperand& w = s.w->weight;
  const auto* at = static_cast<const typename T::Element*>(w.data) + s.expert * w.expert + s.first_row;
  for (int n = 0; n < s.pairs; ++n)
    __builtin_memset(s.y + n * s.y_stride, 0, sizeof(float) * round_up(s.rows, kRowStep));
  for (std::int64_t k = 0; k < s.elements; k += kColumnLines, at += kColumnLines * w.column)
    for_shares<kColumnPairs>(s.pairs, [&]<int N>(int pair) { column_run<T, N>(s, at, k, pair); });
  for (int n = 0; n < s.pairs; ++n)
    for (int row = 0; row < s.rows; row += kRowStep) {
      float* y = s.y + n * s.y_stride + row;
      F x[2] = {load(y), load(y + kVecLanes)};
      natural_order<T>(x);
      store(y, x[0]);
      store(y + kVecLanes, x[1]);
    }
}

// Packed rows: [line / kElementsPerWord][pair], zeros up to whole runs of lines.
template <class TX>
TF_NOINLINE void pack_lines(const typename TX::Element* row, std::int64_t elements, int pair, int pairs,
                            Word* out) {
  out += pair;
  for (std::int64_t d = 0; d < elements; d += kColumnLines) {
    const std::int64_t n = min_of<std::int64_t>(elements - d, kColumnLines);
    alignas(64) Word words[max_of(kColumnLines, kVecLanes)];
    for (int w = 0; w < kColumnLines / kElementsPerWord; w += kVecLanes)
      store_words(words + w, load_row_words<TX>(row + d + w * kElementsPerWord, n - w * kElementsPerWord));
    for (int w = 0; w < kColumnLines / kElementsPerWord; ++w, out += pairs) *out = words[w];
  }
}

// The form of weights that are stored across.
template <class T>
struct StreamedColumns {
  static_assert(RowProduct<T>::kValueKeys == kElementsPerWord);

  TF_MEMBER static std::int64_t words(std::int64_t elements, int pairs) {
    return round_up(round_up(elements, kColumnLines) / kElementsPerWord * pairs, kVecLanes);
  }
  template <class TX>
  TF_MEMBER static void pack(const typename TX::Element* row, std::int64_t elements, int pair, int pairs,
                             Word* out) {
    pack_lines<TX>(row, elements, pair, pairs, out);
  }
  TF_MEMBER static void sums(const StreamedProduct& s) { sums_of_columns<T>(s); }
};

}  // namespace tileformer::TILEFORMER_UNIT
