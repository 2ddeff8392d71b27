// Products of a run of K or V rows with the rows of a group. K and V are read where they lie; what the same
// place of the next chunk needs is prefetched between the products. Included by kernels only.
#pragma once

#include "ops/attention/key_rows.h"

namespace tileformer::TILEFORMER_UNIT {

inline constexpr int kLineBytes = 64;

// Prefetches what kSteps steps of a row cover, into L1 (near) or L2.
template <class T, int kSteps = 1>
TF_INLINE void prefetch_steps(const typename T::Element* p, bool near) {
  constexpr int kBytes = kSteps * kRowStep * static_cast<int>(sizeof(typename T::Element));
  constexpr int kLines = kBytes > kLineBytes ? kBytes / kLineBytes : 1;
  TF_UNROLL for (int i = 0; i < kLines; ++i) {
    const char* line = reinterpret_cast<const char*>(p) + i * kLineBytes;
    if (near)
      prefetch(line);
    else
      prefetch_far(line);
  }
}
// Whether a step begins a line; narrow steps share one.
template <class T, int kSteps = 1>
TF_INLINE bool begins_line(int step) {
  constexpr int kBytes = kSteps * kRowStep * static_cast<int>(sizeof(typename T::Element));
  return kBytes >= kLineBytes || step / kSteps * kBytes % kLineBytes == 0;
}

// Rows of queries or probabilities: packed words, `words` from row to row. scale: of each row of whole
// numbers.
struct PackedRows {
  const Word* at;
  std::int64_t words;
  const float* scale;
};

// Rows of K or V, `stride` elements apart, a multiple of kRunRows of them. Read later: `near`, what follows
// the run, which goes into L1; `far`, the same place of the next chunk, into L2; both are `rows` if nothing
// is known to follow.
template <class T>
struct RunOf {
  const typename T::Element* rows;
  std::int64_t stride;
  int count;
  const typename T::Element *near, *far;
  int tile, tiles;  // of queries: they take turns in prefetching what is far, for an even stream
  TF_MEMBER bool prefetches_near() const { return near != rows && tile == 0; }
  TF_MEMBER bool prefetches_far(int row) const { return far != rows && row / 4 % tiles == tile; }
};

// s [Q][s_stride]: scores of Q queries. 4 x Q accumulators.
template <class T, int Q>
TF_NOINLINE void score_run(const RunOf<T>& run, PackedRows q, int steps, float* s, std::int64_t s_stride) {
  constexpr int kKeys = 4, kBlocks = kRunRows / kKeys, kParts = kVecLanes / kKeys;
  // One query has too few accumulators to hide their latency: one set for each vector of a step.
  using Product = RowProduct<T>;
  constexpr int kWords = Product::kKeyWords, kSets = Q == 1 ? kWords : 1;
  const std::int64_t stride = run.stride;
  for (int first = 0; first < run.count; first += kRunRows, s += kRunRows) {
    F sums[Q][kParts];
    TF_UNROLL for (int b = 0; b < kBlocks; ++b) {
      typename Product::Sum acc[kSets][Q][kKeys];
      TF_UNROLL for (int i = 0; i < kSets; ++i) TF_UNROLL for (int r = 0; r < Q; ++r)
          TF_UNROLL for (int j = 0; j < kKeys; ++j) acc[i][r][j] = Product::nothing();
      const std::int64_t at = (first + b * kKeys) * stride;
      const auto* rows = run.rows + at;
      // Near: kRunRows rows further, and behind the last ones what follows the run.
      const auto* near =
          first + kRunRows < run.count ? rows + kRunRows * stride : run.near + b * kKeys * stride;
      const bool goes_near = run.prefetches_near(), goes_far = run.prefetches_far(first + b * kKeys);
      const Word* query = q.at;
      TF_NO_UNROLL for (int c = 0; c < steps; ++c, query += kWords * kVecLanes) {
        if (begins_line<T>(c)) {
          if (goes_near)
            TF_UNROLL for (int j = 0; j < kKeys; ++j)
                prefetch_steps<T>(near + j * stride + c * kRowStep, true);
          if (goes_far)
            TF_UNROLL for (int j = 0; j < kKeys; ++j)
                prefetch_steps<T>(run.far + at + j * stride + c * kRowStep, false);
        }
        TF_UNROLL for (int w = 0; w < kWords; ++w) {
          typename Product::Vector x[Q];
          TF_UNROLL for (int r = 0; r < Q; ++r) x[r] = Product::packed(query + r * q.words + w * kVecLanes);
          TF_UNROLL for (int j = 0; j < kKeys; ++j) {
            const auto key = Product::key(rows + j * stride + c * kRowStep, w);
            TF_UNROLL for (int r = 0; r < Q; ++r) acc[w % kSets][r][j] =
                Product::multiply(acc[w % kSets][r][j], key, x[r]);
          }
        }
      }
      TF_UNROLL for (int r = 0; r < Q; ++r) {
        F totals[kKeys];
        TF_UNROLL for (int j = 0; j < kKeys; ++j) {
          totals[j] = Product::total(acc[0][r][j]);
          if constexpr (kSets == 2) totals[j] = add(totals[j], Product::total(acc[1][r][j]));
        }
        sums[r][b % kParts] = sum_of_four(totals[0], totals[1], totals[2], totals[3]);
        if (b % kParts == kParts - 1) store(s + r * s_stride + b / kParts * kVecLanes, join_sums(sums[r]));
      }
    }
  }
}

template <class T, int Q = kRowScoreQueries>
TF_INLINE void score_run_of(int queries, const RunOf<T>& run, PackedRows q, int steps, float* s,
                            std::int64_t s_stride) {
  if constexpr (Q > 1)
    if (queries < Q) return score_run_of<T, Q - 1>(queries, run, q, steps, s, s_stride);
  score_run<T, Q>(run, q, steps, s, s_stride);
}

// O of Q rows += P V, C steps of columns from step `step` on.
template <class T, int Q, int C>
TF_INLINE void output_steps(const RunOf<T>& run, PackedRows p, int step, float* o, std::int64_t o_stride) {
  const std::int64_t at = step * kRowStep, stride = run.stride;
  const auto* v = run.rows + at;
  // Near: the next line of the same rows.
  constexpr int kAhead = kLineBytes / static_cast<int>(sizeof(typename T::Element));
  const auto *near = v + (C * kRowStep > kAhead ? C * kRowStep : kAhead), *far = run.far + at;
  // Narrow steps share a line: each of them prefetches its part of the rows.
  constexpr int kSharers = C * kRowStep < kAhead ? kAhead / (C * kRowStep) : 1;
  const int first_ahead = step / C % kSharers * (run.count / kSharers);
  o += at;
  using Product = RowProduct<T>;
  typename Product::Sum acc[Q][2 * C];
  TF_UNROLL for (int r = 0; r < Q; ++r) TF_UNROLL for (int j = 0; j < 2 * C; ++j) {
    if constexpr (Product::kWhole)
      acc[r][j] = Product::nothing();
    else
      acc[r][j] = load(o + r * o_stride + j * kVecLanes);
  }
  constexpr int kAtOnce = 4, kRowsAhead = kSharers < kAtOnce ? kAtOnce / kSharers : 1;
  TF_NO_UNROLL for (int i = 0; i < run.count; i += kAtOnce) {
    const std::int64_t place = (first_ahead + i / kSharers) * stride;
    if (run.prefetches_near())
      TF_UNROLL for (int e = 0; e < kRowsAhead; ++e) prefetch_steps<T, C>(near + place + e * stride, true);
    if (run.prefetches_far(i))
      TF_UNROLL for (int e = 0; e < kRowsAhead; ++e) prefetch_steps<T, C>(far + place + e * stride, false);
    TF_UNROLL for (int row = 0; row < kAtOnce; row += Product::kValueKeys) {
      typename Product::Vector x[C][2];
      TF_UNROLL for (int c = 0; c < C; ++c)
          Product::value(v + (i + row) * stride + c * kRowStep, stride, x[c]);
      TF_UNROLL for (int r = 0; r < Q; ++r) {
        const auto weight = Product::weight(p.at + r * p.words + (i + row) / Product::kValueKeys);
        TF_UNROLL for (int c = 0; c < C; ++c) TF_UNROLL for (int j = 0; j < 2; ++j) acc[r][2 * c + j] =
            Product::multiply(acc[r][2 * c + j], weight, x[c][j]);
      }
    }
  }
  TF_UNROLL for (int r = 0; r < Q; ++r) TF_UNROLL for (int j = 0; j < 2 * C; ++j) {
    float* to = o + r * o_stride + j * kVecLanes;
    if constexpr (Product::kWhole)
      store(to, fma(Product::total(acc[r][j]), set(p.scale[r]), load(to)));
    else
      store(to, acc[r][j]);
  }
}

// All columns of o [Q][o_stride]; p: words of the run's keys. Few queries take several steps at once, for
// enough accumulators.
template <class T, int Q>
TF_NOINLINE void output_run(const RunOf<T>& run, PackedRows p, int steps, float* o, std::int64_t o_stride) {
  constexpr int C = Q == 1 ? 4 : Q <= 3 ? 2 : 1;
  int c = 0;
  for (; c + C <= steps; c += C) output_steps<T, Q, C>(run, p, c, o, o_stride);
  if constexpr (C > 1)
    for (; c < steps; ++c) output_steps<T, Q, 1>(run, p, c, o, o_stride);
}

template <class T, int Q = kRowOutputQueries>
TF_INLINE void output_run_of(int queries, const RunOf<T>& run, PackedRows p, int steps, float* o,
                             std::int64_t o_stride) {
  if constexpr (Q > 1)
    if (queries < Q) return output_run_of<T, Q - 1>(queries, run, p, steps, o, o_stride);
  output_run<T, Q>(run, p, steps, o, o_stride);
}

// Rows are cut into tiles of nearly the same height, at most `most`: calls use(first, rows, tile, tiles).
template <class Use>
TF_INLINE void for_row_tiles(int rows, int most, Use use) {
  const int tiles = static_cast<int>(ceil_div(rows, most));
  for (int t = 0, first = 0; t < tiles; ++t) {
    const int count = rows / tiles + (t < rows % tiles);
    use(first, count, t, tiles);
    first += count;
  }
}

}  // namespace tileformer::TILEFORMER_UNIT
