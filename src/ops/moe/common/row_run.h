// Streamed weights whose rows are contiguous: a row's elements are the lanes. Included by kernels only.
//
// What a row is made of is told by a struct:
//
//   Element                  of memory
//   kElements, kBytes        a block of a row of weights
//   kScales                  scales of a block, if rows have several
//   kWords                   the block of a packed row that is multiplied with it
//   kMostBlocks              whose sums fit before settle()
//   kPairs                   packed rows that are multiplied together, at most
//   kWhole                   packed rows are whole numbers, and followed by a factor each
//   Sums<N, R>               of N packed rows and R rows of weights: add(at, scale, packed), settle(),
//                            total(n, j)
//   pack<TX>(row, elements, out, stride)    blocks `stride` words apart; returns the factor
#pragma once

#include "ops/moe/common/streamed.h"

namespace tileformer::TILEFORMER_UNIT {

inline constexpr int kLineBytes = 64;

// Rows of weights that are multiplied together: one, if N products hide its latency. Memory is then read in
// one place after the other.
TF_INLINE constexpr int rows_at_once(int n) {
  if (kVecRegisters >= 32) return n <= 3 ? 1 : 4;
  return n <= 2 ? 1 : 2;
}

// How far ahead of the products lines are asked for, into L2 and into L1. (Zen 3: without either, 5 to 15 %
// of the bandwidth are lost. Packed rows take most of L1, so that near is near.)
TF_INLINE constexpr int far_bytes(int rows) { return rows == 1 ? 16384 : 8192; }
TF_INLINE std::int64_t near_bytes(int rows, std::int64_t row_bytes) {
  return rows == 1 ? 2048 : rows * row_bytes;
}

// The compiler would load what later products need as well, and run out of registers.
TF_INLINE void end_of_step() { asm volatile("" ::: "memory"); }

// Rows as they are multiplied by floating point.
template <class T>
struct PlainRows {
  using Element = typename T::Element;
  using Product = RowProduct<T>;
  static constexpr int kLineElements = kLineBytes / static_cast<int>(sizeof(Element));
  static constexpr int kElements = kLineElements > kRowStep ? kLineElements : kRowStep;
  static constexpr int kBytes = kElements * static_cast<int>(sizeof(Element));
  static constexpr int kScales = 0;
  static constexpr int kStepWords = Product::kKeyWords * kVecLanes;
  static constexpr int kWords = kElements / kRowStep * kStepWords;
  static constexpr std::int64_t kMostBlocks = INT64_MAX;
  static constexpr int kPairs = 6;
  static constexpr bool kWhole = false;

  template <int N, int R>
  struct Sums {
    // Sums of their own for each vector of a step, where there are too few to hide the latency.
    static constexpr int kVectors = Product::kKeyWords, kSets = N * R <= 2 ? kVectors : 1;
    F sum[kSets][N][R];

    TF_MEMBER Sums() {
      TF_UNROLL for (int i = 0; i < kSets; ++i) TF_UNROLL for (int n = 0; n < N; ++n)
          TF_UNROLL for (int j = 0; j < R; ++j) sum[i][n][j] = zero();
    }
    TF_MEMBER void add(const Element* const (&at)[R], const float* const (&)[R], const Word* packed) {
      TF_UNROLL for (int step = 0; step < kElements / kRowStep; ++step)
          TF_UNROLL for (int v = 0; v < kVectors; ++v) {
        typename Product::Vector key[R];
        TF_UNROLL for (int j = 0; j < R; ++j) key[j] = Product::key(at[j] + step * kRowStep, v);
        TF_UNROLL for (int n = 0; n < N; ++n) {
          const auto x = Product::packed(packed + n * kWords + step * kStepWords + v * kVecLanes);
          TF_UNROLL for (int j = 0; j < R; ++j) sum[v % kSets][n][j] =
              Product::multiply(sum[v % kSets][n][j], key[j], x);
        }
        end_of_step();
      }
    }
    TF_MEMBER void settle() {}
    TF_MEMBER F total(int n, int j) const {
      if constexpr (kSets == 2) return tileformer::TILEFORMER_UNIT::add(sum[0][n][j], sum[1][n][j]);
      return sum[0][n][j];
    }
  };

  TF_MEMBER static void copy_rest(const Element* at, const float*, int elements, Element* to, float*) {
    copy_some<kElements>(to, at, elements);
  }

  template <class TX>
  TF_MEMBER static float pack(const typename TX::Element* row, std::int64_t elements, Word* out,
                              std::int64_t stride) {
    for (std::int64_t d = 0; d < elements; out += stride)
      TF_UNROLL for (int w = 0; w < kWords; w += kStepWords, d += kRowStep)
          pack_query_step<T, TX>(row + d, elements - d, 1, out + w);
    return 1;
  }
};

// Rows of an expert's weights in memory.
template <class Row>
struct RowsInMemory {
  const typename Row::Element* at;
  std::int64_t stride;
  const float* scale;  // of blocks; only where Row has some
  std::int64_t scale_stride;
  int rows;
  std::int64_t elements;
};

// The totals of rows [first, first + R), of the last one where there are fewer.
template <class Row, int N, int R>
TF_INLINE void sum_rows(const RowsInMemory<Row>& w, int first, const Word* packed, std::int64_t packed_block,
                        F (&totals)[N][R]) {
  const typename Row::Element* at[R];
  const float* scale[R];
  TF_UNROLL for (int j = 0; j < R; ++j) {
    const std::int64_t row = min_of(first + j, w.rows - 1);
    at[j] = w.at + row * w.stride;
    scale[j] = Row::kScales ? w.scale + row * w.scale_stride : nullptr;
  }
  typename Row::template Sums<N, R> sums;
  const std::int64_t near =
      near_bytes(R, w.stride * static_cast<std::int64_t>(sizeof(typename Row::Element)));
  const auto advance = [&](std::int64_t blocks) __attribute__((always_inline)) {
    TF_NO_UNROLL for (std::int64_t b = 0; b < blocks; ++b) {
      TF_UNROLL for (int j = 0; j < R; ++j) TF_UNROLL for (int l = 0; l < Row::kBytes; l += kLineBytes) {
        prefetch_far(reinterpret_cast<const char*>(at[j]) + far_bytes(R) + l);
        prefetch(reinterpret_cast<const char*>(at[j]) + near + l);
      }
      sums.add(at, scale, packed);
      packed += packed_block;
      TF_UNROLL for (int j = 0; j < R; ++j) {
        at[j] += Row::kBytes / static_cast<int>(sizeof(typename Row::Element));
        scale[j] += Row::kScales;
      }
    }
    sums.settle();
  };
  for (std::int64_t left = w.elements / Row::kElements; left > 0; left -= Row::kMostBlocks)
    advance(min_of(left, Row::kMostBlocks));
  if (const int rest = static_cast<int>(w.elements % Row::kElements); TF_UNLIKELY(rest > 0)) {
    alignas(64) typename Row::Element copy[R][Row::kBytes / sizeof(typename Row::Element)] = {};
    float scales[R][Row::kScales + 1] = {};
    TF_UNROLL for (int j = 0; j < R; ++j) {
      Row::copy_rest(at[j], scale[j], rest, copy[j], scales[j]);
      at[j] = copy[j];
      scale[j] = scales[j];
    }
    sums.add(at, scale, packed);
    sums.settle();
  }
  TF_UNROLL for (int n = 0; n < N; ++n) TF_UNROLL for (int j = 0; j < R; ++j) totals[n][j] = sums.total(n, j);
}

// y [n][y_stride] of N packed rows. factor: of each of them; row_scale: of each row of weights, null: none.
template <class Row, int N>
TF_NOINLINE void row_run(const RowsInMemory<Row>& w, const Word* packed, std::int64_t packed_block,
                         const float* factor, const float* row_scale, float* y, std::int64_t y_stride) {
  constexpr int kParts = kVecLanes / 4, R = rows_at_once(N);
  for (int first = 0; first < w.rows; first += kVecLanes) {
    F sums[N][kParts];
    TF_NO_UNROLL for (int part = 0; part < kParts; ++part) {
      F totals[4 / R][N][R];
      TF_NO_UNROLL for (int i = 0; i < 4 / R; ++i)
          sum_rows<Row, N, R>(w, first + 4 * part + i * R, packed, packed_block, totals[i]);
      const auto total = [&](int n, int j) __attribute__((always_inline)) { return totals[j / R][n][j % R]; };
      TF_UNROLL for (int n = 0; n < N; ++n) sums[n][part] =
          sum_of_four(total(n, 0), total(n, 1), total(n, 2), total(n, 3));
    }
    const F scale = row_scale ? load_up_to<F32>(row_scale + first, w.rows - first) : set(1);
    TF_UNROLL for (int n = 0; n < N; ++n) {
      F sum = join_sums(sums[n]);
      if constexpr (Row::kWhole) sum = mul(sum, mul(scale, set(factor[n])));
      store(y + n * y_stride + first, sum);
    }
  }
}

template <class Row>
TF_INLINE std::int64_t row_blocks(std::int64_t elements) {
  return ceil_div(elements, Row::kElements);
}

// Packed rows: [block][pair][kWords], then the factors.
template <class Row, class TX>
TF_NOINLINE void pack_row(const typename TX::Element* row, std::int64_t elements, int pair, int pairs,
                          Word* out) {
  const float factor = Row::template pack<TX>(row, elements, out + pair * Row::kWords, pairs * Row::kWords);
  if constexpr (Row::kWhole)
    __builtin_memcpy(out + row_blocks<Row>(elements) * pairs * Row::kWords + pair, &factor, sizeof factor);
}

template <class Row>
TF_NOINLINE void sums_of_rows(const StreamedProduct& s) {
  const moe::ExpertOperand &weight = s.w->weight, &scale = s.w->scale;
  const auto* data = static_cast<const typename Row::Element*>(weight.data) + s.expert * weight.expert;
  const auto* scales = static_cast<const float*>(scale.data);
  if (scales) scales += s.expert * scale.expert;
  const std::int64_t packed_block = s.pairs * Row::kWords;
  const auto* factor = reinterpret_cast<const float*>(s.packed + row_blocks<Row>(s.elements) * packed_block);
  const int at_once = s.pairs <= Row::kPairs ? s.rows : kVecLanes;
  for (int first = 0; first < s.rows; first += at_once) {
    const std::int64_t row = s.first_row + first;
    const RowsInMemory<Row> rows{
        data + row * weight.row,         weight.row, scales ? scales + row * scale.row : nullptr, scale.row,
        min_of(at_once, s.rows - first), s.elements};
    const float* row_scale = Row::kScales ? nullptr : rows.scale;
    for_shares<Row::kPairs>(s.pairs, [&]<int N>(int pair) {
      row_run<Row, N>(rows, s.packed + pair * Row::kWords, packed_block, factor + pair, row_scale,
                      s.y + pair * s.y_stride + first, s.y_stride);
    });
  }
}

// The form of weights with contiguous rows.
template <class Row>
struct StreamedRows {
  TF_MEMBER static std::int64_t words(std::int64_t elements, int pairs) {
    return row_blocks<Row>(elements) * pairs * Row::kWords + (Row::kWhole ? round_up(pairs, kVecLanes) : 0);
  }
  template <class TX>
  TF_MEMBER static void pack(const typename TX::Element* row, std::int64_t elements, int pair, int pairs,
                             Word* out) {
    pack_row<Row, TX>(row, elements, pair, pairs, out);
  }
  TF_MEMBER static void sums(const StreamedProduct& s) { sums_of_rows<Row>(s); }
};

}  // namespace tileformer::TILEFORMER_UNIT
