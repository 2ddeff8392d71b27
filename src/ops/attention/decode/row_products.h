// Products of a run of K or V rows with the rows of a group. K and V are read where they lie; what the same
// place of the next chunk needs is prefetched between the products. Included by kernels only.
#pragma once

#include "ops/attention/key_rows.h"

namespace tileformer::TILEFORMER_UNIT {

inline constexpr int kLineBytes = 64;

// Prefetches what a step of kRowStep elements covers; narrower steps do so once a line.
template <class T, int kSteps = 1>
TF_INLINE void prefetch_step(const typename T::Element* ahead, int step) {
  constexpr int kBytes = kSteps * kRowStep * static_cast<int>(sizeof(typename T::Element));
  if constexpr (kBytes >= kLineBytes) {
    TF_UNROLL for (int i = 0; i < kBytes / kLineBytes; ++i)
        prefetch_far(reinterpret_cast<const char*>(ahead) + i * kLineBytes);
  } else {
    if (step * kBytes % kLineBytes == 0) prefetch_far(ahead);
  }
}

// Rows of queries: packed words, `words` from row to row.
struct PackedRows {
  const Word* at;
  std::int64_t words;
};

// s [Q][s_stride]: kRunRows scores of Q queries. ahead: null or the run to prefetch. 4 x Q accumulators.
template <class T, int Q>
TF_NOINLINE void score_run(const typename T::Element* k, std::int64_t stride, PackedRows q, int steps,
                           const typename T::Element* ahead, float* s, std::int64_t s_stride) {
  constexpr int kKeys = 4, kBlocks = kRunRows / kKeys, kParts = kVecLanes / kKeys;
  // One query has too few accumulators to hide their latency: one set for each vector of a step.
  constexpr int kSets = Q == 1 ? kKeyStepWords : 1;
  F sums[Q][kParts];
  TF_UNROLL for (int b = 0; b < kBlocks; ++b) {
    F acc[kSets][Q][kKeys];
    TF_UNROLL for (int i = 0; i < kSets; ++i) TF_UNROLL for (int r = 0; r < Q; ++r)
        TF_UNROLL for (int j = 0; j < kKeys; ++j) acc[i][r][j] = zero();
    const auto* rows = k + b * kKeys * stride;
    const Word* query = q.at;
    TF_NO_UNROLL for (int c = 0; c < steps; ++c, query += kKeyStepWords * kVecLanes) {
      if (ahead)
        TF_UNROLL for (int j = 0; j < kKeys; ++j)
            prefetch_step<T>(ahead + (b * kKeys + j) * stride + c * kRowStep, c);
      TF_UNROLL for (int w = 0; w < kKeyStepWords; ++w) {
        Words x[Q];
        TF_UNROLL for (int r = 0; r < Q; ++r) x[r] = load_words(query + r * q.words + w * kVecLanes);
        TF_UNROLL for (int j = 0; j < kKeys; ++j) {
          const Words key = load_key_words<T>(rows + j * stride + c * kRowStep, w);
          TF_UNROLL for (int r = 0; r < Q; ++r) acc[w % kSets][r][j] =
              multiply_add(acc[w % kSets][r][j], key, x[r]);
        }
      }
    }
    TF_UNROLL for (int r = 0; r < Q; ++r) {
      if constexpr (kSets == 2)
        TF_UNROLL for (int j = 0; j < kKeys; ++j) acc[0][r][j] = add(acc[0][r][j], acc[1][r][j]);
      sums[r][b % kParts] = sum_of_four(acc[0][r][0], acc[0][r][1], acc[0][r][2], acc[0][r][3]);
      if (b % kParts == kParts - 1) store(s + r * s_stride + b / kParts * kVecLanes, join_sums(sums[r]));
    }
  }
}

template <class T, int Q = kRowScoreQueries>
TF_INLINE void score_run_of(int queries, const typename T::Element* k, std::int64_t stride, PackedRows q,
                            int steps, const typename T::Element* ahead, float* s, std::int64_t s_stride) {
  if constexpr (Q > 1)
    if (queries < Q) return score_run_of<T, Q - 1>(queries, k, stride, q, steps, ahead, s, s_stride);
  score_run<T, Q>(k, stride, q, steps, ahead, s, s_stride);
}

// o [Q][o_stride] += P V over kRunRows keys and C steps of columns. p: words of the run's keys.
template <class T, int Q, int C>
TF_NOINLINE void output_run(const typename T::Element* v, std::int64_t stride, PackedRows p,
                            const typename T::Element* ahead, int step, float* o, std::int64_t o_stride) {
  F acc[Q][2 * C];
  TF_UNROLL for (int r = 0; r < Q; ++r) TF_UNROLL for (int j = 0; j < 2 * C; ++j) acc[r][j] =
      load(o + r * o_stride + j * kVecLanes);
  constexpr int kBytes = C * kRowStep * static_cast<int>(sizeof(typename T::Element));
  if (kBytes < kLineBytes && step / C * kBytes % kLineBytes != 0) ahead = nullptr;
  constexpr int kAtOnce = 4 / kElementsPerWord;
  TF_NO_UNROLL for (int i = 0; i < kRunRows; i += 4) {
    TF_UNROLL for (int u = 0; u < kAtOnce; ++u) {
      const int row = i + u * kElementsPerWord;
      if (ahead)
        TF_UNROLL for (int e = 0; e < kElementsPerWord; ++e)
            prefetch_step<T, C>(ahead + (row + e) * stride, 0);
      Words x[C][2];
      TF_UNROLL for (int c = 0; c < C; ++c) load_value_step<T>(v + row * stride + c * kRowStep, stride, x[c]);
      TF_UNROLL for (int r = 0; r < Q; ++r) {
        const Words weight = broadcast_word(p.at + r * p.words + row / kElementsPerWord);
        TF_UNROLL for (int c = 0; c < C; ++c) TF_UNROLL for (int j = 0; j < 2; ++j) acc[r][2 * c + j] =
            multiply_add(acc[r][2 * c + j], weight, x[c][j]);
      }
    }
  }
  TF_UNROLL for (int r = 0; r < Q; ++r) TF_UNROLL for (int j = 0; j < 2 * C; ++j)
      store(o + r * o_stride + j * kVecLanes, acc[r][j]);
}

// All steps of columns. Few queries take several steps at once, for enough accumulators.
template <class T, int Q>
TF_INLINE void output_columns(const typename T::Element* v, std::int64_t stride, PackedRows p, int steps,
                              const typename T::Element* ahead, float* o, std::int64_t o_stride) {
  constexpr int C = Q == 1 ? 4 : Q <= 3 ? 2 : 1;
  int c = 0;
  const auto next = [&](int step) { return ahead ? ahead + step * kRowStep : nullptr; };
  for (; c + C <= steps; c += C)
    output_run<T, Q, C>(v + c * kRowStep, stride, p, next(c), c, o + c * kRowStep, o_stride);
  if constexpr (C > 1)
    for (; c < steps; ++c)
      output_run<T, Q, 1>(v + c * kRowStep, stride, p, next(c), c, o + c * kRowStep, o_stride);
}

template <class T, int Q = kRowOutputQueries>
TF_INLINE void output_columns_of(int queries, const typename T::Element* v, std::int64_t stride, PackedRows p,
                                 int steps, const typename T::Element* ahead, float* o,
                                 std::int64_t o_stride) {
  if constexpr (Q > 1)
    if (queries < Q) return output_columns_of<T, Q - 1>(queries, v, stride, p, steps, ahead, o, o_stride);
  output_columns<T, Q>(v, stride, p, steps, ahead, o, o_stride);
}

// Rows are cut into tiles of nearly the same height, at most `most`: calls tile(first, rows).
template <class Tile>
TF_INLINE void for_row_tiles(int rows, int most, Tile tile) {
  const int tiles = static_cast<int>(ceil_div(rows, most));
  for (int t = 0, first = 0; t < tiles; ++t) {
    const int count = rows / tiles + (t < rows % tiles);
    tile(first, count);
    first += count;
  }
}

}  // namespace tileformer::TILEFORMER_UNIT
