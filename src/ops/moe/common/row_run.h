// Few pairs of an expert: its weights are read once, in the order of their addresses, and their elements are
// the lanes. Bound by memory, so that nothing is copied or padded; included by kernels only.
#pragma once

#include "tile/pack.h"

namespace tileformer::TILEFORMER_UNIT {

// A run of more pairs is multiplied in tiles.
inline constexpr int kMaxRowPairs = 8;
inline constexpr int kRowsAtOnce = 4;
// So far ahead of the products a row's weights are asked for.
inline constexpr int kBytesAhead = 2048;

TF_INLINE std::int64_t packed_row_words(std::int64_t elements) {
  return ceil_div(elements, kRowStep) * kKeyStepWords * kVecLanes;
}

// A row of hidden or h as the counterpart of rows stored as T.
template <class T, class TX>
TF_INLINE void pack_row(const typename TX::Element* row, std::int64_t elements, Word* out) {
  for (std::int64_t d = 0; d < elements; d += kRowStep, out += kKeyStepWords * kVecLanes)
    pack_query_step<T, TX>(row + d, elements - d, 1, out);
}

// Rows of weights, `elements` of them times N packed rows: y[n][row].
struct RowSums {
  const void* weight;  // the first row
  std::int64_t stride;
  int rows;
  std::int64_t elements;
  const Word* packed;
  std::int64_t packed_words;  // from row to row
  float* y;                   // [n][y_stride], written in whole vectors
  std::int64_t y_stride;
};

template <class T, int N>
TF_NOINLINE void row_sums(const RowSums& s) {
  using Product = RowProduct<T>;
  using E = typename T::Element;
  constexpr int kWords = Product::kKeyWords, kSets = N == 1 ? kWords : 1, kParts = kVecLanes / kRowsAtOnce;
  constexpr int kLineElements = 64 / static_cast<int>(sizeof(E));
  constexpr int kLines = kRowStep > kLineElements ? kRowStep / kLineElements : 1;
  const std::int64_t whole = s.elements / kRowStep * kRowStep;
  const auto* weight = static_cast<const E*>(s.weight);
  for (int first = 0; first < s.rows; first += kVecLanes) {
    F sums[N][kParts];
    TF_UNROLL for (int part = 0; part < kParts; ++part) {
      const E* row[kRowsAtOnce];
      TF_UNROLL for (int j = 0; j < kRowsAtOnce; ++j) row[j] =
          weight + min_of(first + part * kRowsAtOnce + j, s.rows - 1) * s.stride;
      typename Product::Sum acc[kSets][N][kRowsAtOnce];
      TF_UNROLL for (int i = 0; i < kSets; ++i) TF_UNROLL for (int n = 0; n < N; ++n)
          TF_UNROLL for (int j = 0; j < kRowsAtOnce; ++j) acc[i][n][j] = Product::nothing();
      const auto step = [&](const E* const(&at)[kRowsAtOnce], const Word* packed)
          __attribute__((always_inline)) {
        TF_UNROLL for (int w = 0; w < kWords; ++w) {
          typename Product::Vector x[N];
          TF_UNROLL for (int n = 0; n < N; ++n) x[n] =
              Product::packed(packed + n * s.packed_words + w * kVecLanes);
          TF_UNROLL for (int j = 0; j < kRowsAtOnce; ++j) {
            const auto key = Product::key(at[j], w);
            TF_UNROLL for (int n = 0; n < N; ++n) acc[w % kSets][n][j] =
                Product::multiply(acc[w % kSets][n][j], key, x[n]);
          }
        }
      };
      const Word* packed = s.packed;
      TF_NO_UNROLL for (std::int64_t d = 0; d < whole; d += kRowStep, packed += kWords * kVecLanes) {
        const E* at[kRowsAtOnce];
        TF_UNROLL for (int j = 0; j < kRowsAtOnce; ++j) {
          at[j] = row[j] + d;
          if (kRowStep >= kLineElements || d % kLineElements == 0)
            TF_UNROLL for (int l = 0; l < kLines; ++l)
                prefetch_far(reinterpret_cast<const char*>(at[j]) + kBytesAhead + 64 * l);
        }
        step(at, packed);
      }
      if (TF_UNLIKELY(whole < s.elements)) {
        E last[kRowsAtOnce][kRowStep] = {};
        const E* at[kRowsAtOnce];
        TF_UNROLL for (int j = 0; j < kRowsAtOnce; ++j) {
          copy_some<kRowStep>(last[j], row[j] + whole, static_cast<int>(s.elements - whole));
          at[j] = last[j];
        }
        step(at, packed);
      }
      TF_UNROLL for (int n = 0; n < N; ++n) {
        F totals[kRowsAtOnce];
        TF_UNROLL for (int j = 0; j < kRowsAtOnce; ++j) {
          totals[j] = Product::total(acc[0][n][j]);
          if constexpr (kSets == 2) totals[j] = add(totals[j], Product::total(acc[1][n][j]));
        }
        sums[n][part] = sum_of_four(totals[0], totals[1], totals[2], totals[3]);
      }
    }
    TF_UNROLL for (int n = 0; n < N; ++n) store(s.y + n * s.y_stride + first, join_sums(sums[n]));
  }
}

template <class T, int N = kRowScoreQueries>
TF_INLINE void row_sums_of(int n, const RowSums& s) {
  if constexpr (N > 1)
    if (n < N) return row_sums_of<T, N - 1>(n, s);
  row_sums<T, N>(s);
}

// All pairs of a run, a few at a time: a few rows of weights come out of L1 or L2 for the later ones.
template <class T>
TF_NOINLINE void run_sums(int pairs, const RowSums& all) {
  const int tiles = static_cast<int>(ceil_div(pairs, kRowScoreQueries));
  const int at_once = tiles == 1 ? all.rows : kVecLanes;
  for (int first = 0; first < all.rows; first += at_once) {
    RowSums s = all;
    s.weight = static_cast<const typename T::Element*>(all.weight) + first * all.stride;
    s.rows = min_of(at_once, all.rows - first);
    s.y += first;
    for (int t = 0; t < tiles; ++t) {
      const int n = pairs / tiles + (t < pairs % tiles);
      row_sums_of<T>(n, s);
      s.packed += n * s.packed_words;
      s.y += n * s.y_stride;
    }
  }
}

}  // namespace tileformer::TILEFORMER_UNIT
