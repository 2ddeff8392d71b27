// The cube of units whose accumulators are vector registers: score and output tiles of R rows x kVecs
// vectors. Rows of the first operand are broadcast word by word, the second is a packed vector of kLanes
// lanes.
//
//   S^T[key][query] = K Q^T     K rows [key][dim], Q packed [dim/W][kLanes]
//   O^T[d][query]  += V^T P^T   V packed in tiles [d/R][key/W][R], P packed [key/W][kLanes]        W =
//   kElementsPerWord
#pragma once

#include "tile/ahead.h"
#include "tile/rows.h"

namespace tileformer::TILEFORMER_UNIT {

inline constexpr int kLanes = kVecs * kVecLanes;              // queries of a tile
inline constexpr int kLaneWords = kLanes / kElementsPerWord;  // of a tile's row
inline constexpr int kStepElements = kElementsPerWord;        // summed in one step

// Around everything that a worker does. Registers need no set-up.
TF_INLINE void enter_unit() {}
TF_INLINE void leave_unit() {}

// ---- packed operands
// -----------------------------------------------------------------------------------------------

TF_INLINE int steps_of(std::int64_t dim) { return static_cast<int>(ceil_div(dim, kElementsPerWord)); }
TF_INLINE std::int64_t query_words(std::int64_t dim) { return round_up(steps_of(dim), kVecLanes) * kLanes; }
TF_INLINE std::int64_t key_stride(std::int64_t dim) { return round_up(steps_of(dim), kVecLanes); }
TF_INLINE std::int64_t output_rows(std::int64_t dim_v) { return dim_v; }
// Steps of a V tile. The slack takes what a step's store writes past its rows, and keeps tiles off a stride
// of 4096 bytes, at which they would share the sets of the L1 cache.
TF_INLINE std::int64_t value_tile_steps(std::int64_t key_block) { return key_block / kElementsPerWord + 10; }
TF_INLINE std::int64_t value_words(std::int64_t dim_v, std::int64_t key_block) {
  return dim_v * value_tile_steps(key_block) + 2 * kVecLanes;
}

// dim_v rows are cut into tiles of nearly the same height: full tiles and a small rest would leave the rest
// bound by the latency of its few accumulators.
struct OutputTiles {
  int count, low, high;  // `high` tiles of low + 1 rows come first
  TF_MEMBER explicit OutputTiles(std::int64_t dim_v)
      : count(static_cast<int>(ceil_div(dim_v, kOutputRows))),
        low(static_cast<int>(dim_v / count)),
        high(static_cast<int>(dim_v % count)) {}
  TF_MEMBER int rows(int t) const { return low + (t < high); }
  TF_MEMBER int first_row(int t) const { return t * low + min_of(t, high); }
};

// V of `keys` rows, zeros up to `padded` rows. The words times zero are added to *nonfinite: it becomes NaN
// where V has a NaN or an infinity. Tiles are narrower than vectors or do not divide them: what a step's
// store leaves behind its rows is overwritten by the next step or falls into the slack.
template <class T, class Rows>
TF_NOINLINE void pack_values(const Rows& v, int keys, int padded, std::int64_t dim_v, std::int64_t key_block,
                             Word* out, F* nonfinite) {
  constexpr int kLineElements = 64 / sizeof(typename T::Element);
  const OutputTiles tiles(dim_v);
  const std::int64_t tile_steps = value_tile_steps(key_block);
  F bad = zero();
  RowRun<T> run, next = v.run(0);
  for (int chunk = 0; chunk < padded; chunk += kRunRows) {
    // A run stays in L1 while all tiles take their part.
    run = next;
    const int end = min_of(padded - chunk, kRunRows), exist = keys - chunk;
    if (exist > kRunRows) next = v.run(chunk + kRunRows);
    for (int i = 0; i < min_of(exist - kRunRows, kRunRows); ++i)
      for (std::int64_t d = 0; d < dim_v; d += kLineElements) prefetch(next.row(i) + d);
    for (int t = 0; t < tiles.count; ++t) {
      const int rows = tiles.rows(t), first = tiles.first_row(t);
      Word* to = out + first * tile_steps + chunk / kElementsPerWord * rows;
      int i = 0;
      if constexpr (kOutputRows <= kStepColumns)
        if (TF_LIKELY(first + kStepColumns <= dim_v))
          for (; i + kElementsPerWord <= min_of(end, exist); i += kElementsPerWord, to += rows) {
            const Words words =
                scaled_row<T>(load_step<T>(run.row(i) + first, run.stride), set(run.scale(i)));
            bad = multiply_add(bad, words, zero_words());
            store_step(to, words);
          }
      for (; i < end; i += kElementsPerWord, to += rows) {
        const F scale = set(i < exist ? run.scale(i) : 0);
        TF_UNROLL for (int part = 0; part < kOutputRows; part += kStepColumns) {
          const Words words = scaled_row<T>(
              load_step_up_to<T>(run.row(i) + first + part, run.stride, exist - i, dim_v - first - part),
              scale);
          bad = multiply_add(bad, words, zero_words());
          store_step(to + part, words);
        }
      }
    }
  }
  *nonfinite = bad;
}

[[maybe_unused]] TF_COLD void clear_nonfinite(Word* v, std::int64_t words) {
  for (std::int64_t i = 0; i < words; ++i) v[i] = finite_word(v[i]);
}

// ---- products
// ------------------------------------------------------------------------------------------------------

// The row addresses of a tile: a base every third row, so that scaled indices reach the rest.
template <int R>
struct RowCursor {
  static constexpr int kBases = (R + 2) / 3;
  const Word* base[kBases];
  std::int64_t stride;
  TF_MEMBER RowCursor(const Word* rows, std::int64_t row_stride) : stride(row_stride) {
    TF_UNROLL for (int i = 0; i < kBases; ++i) base[i] = rows + 3 * i * row_stride;
  }
  TF_MEMBER const Word* row(int r) const { return base[r / 3] + r % 3 * stride; }
  TF_MEMBER void next() { TF_UNROLL for (int i = 0; i < kBases; ++i)++ base[i]; }
};

template <int R, int V = kVecs>
TF_INLINE void multiply_rows(RowCursor<R>& rows, const Word*& packed, int steps, F (&acc)[R][V]) {
  TF_NO_UNROLL for (int s = 0; s < steps; ++s) {
    Words b[V];
    TF_UNROLL for (int j = 0; j < V; ++j) b[j] = load_words(packed + j * kVecLanes);
    TF_UNROLL for (int r = 0; r < R; ++r) {
      const Words a = broadcast_word(rows.row(r));
      TF_UNROLL for (int j = 0; j < V; ++j) acc[r][j] = multiply_add(acc[r][j], a, b[j]);
    }
    rows.next();
    packed += kLanes;
  }
}

struct TileMax {
  F lane[kVecs];
};

// One score tile: kKeyRows keys from k on, stored to s [kKeyRows][kLanes]. The companion's slices run between
// equal parts of the product. Returns the largest score of each query.
template <class Companion>
TF_INLINE TileMax score_tile(const Word* k, std::int64_t stride, const Word* q, int steps, float* s,
                             Companion companion) {
  F acc[kKeyRows][kVecs];
  TF_UNROLL for (int r = 0; r < kKeyRows; ++r) TF_UNROLL for (int j = 0; j < kVecs; ++j) acc[r][j] = zero();
  RowCursor<kKeyRows> rows(k, stride);
  constexpr int kSlices = Companion::kSlices;
  // The next tile's rows follow in the packed block, which is larger than L1.
  constexpr int kLineWords = 64 / sizeof(Word);
  const Word* next = k + kKeyRows * stride;
  const int lines = static_cast<int>(ceil_div(kKeyRows * stride, kLineWords * kSlices));
  companion.begin();
  TF_UNROLL for (int c = 0; c < kSlices; ++c) {
    TF_NO_UNROLL for (int i = 0; i < lines; ++i, next += kLineWords) prefetch(next);
    companion.slice(c);
    multiply_rows<kKeyRows>(rows, q, (c + 1) * steps / kSlices - c * steps / kSlices, acc);
  }
  companion.end();
  TileMax max_of_tile;
  TF_UNROLL for (int j = 0; j < kVecs; ++j) {
    F m = acc[0][j];
    TF_UNROLL for (int r = 1; r < kKeyRows; ++r) m = max(m, acc[r][j]);
    max_of_tile.lane[j] = m;
  }
  TF_UNROLL for (int r = 0; r < kKeyRows; ++r) TF_UNROLL for (int j = 0; j < kVecs; ++j)
      store(s + r * kLanes + j * kVecLanes, acc[r][j]);
  return max_of_tile;
}

// V: vectors of lanes, the first ones.
template <int R, int V>
TF_NOINLINE void output_tile(const Word* v, const Word* p, int steps, float* o, bool first) {
  // From zero: a sum of block sums is rounded less than one long sum.
  F acc[R][V];
  TF_UNROLL for (int r = 0; r < R; ++r) TF_UNROLL for (int j = 0; j < V; ++j) {
    acc[r][j] = zero();
    prefetch(o + r * kLanes + j * kVecLanes);
  }
  TF_NO_UNROLL for (int s = 0; s < steps; ++s) {
    Words b[V];
    TF_UNROLL for (int j = 0; j < V; ++j) b[j] = load_words(p + j * kVecLanes);
    TF_UNROLL for (int r = 0; r < R; ++r) {
      const Words a = broadcast_word(v + r);
      TF_UNROLL for (int j = 0; j < V; ++j) acc[r][j] = multiply_add(acc[r][j], a, b[j]);
    }
    v += R;
    p += kLanes;
  }
  TF_UNROLL for (int r = 0; r < R; ++r) TF_UNROLL for (int j = 0; j < V; ++j) {
    float* at = o + r * kLanes + j * kVecLanes;
    store(at, first ? acc[r][j] : add(load(at), acc[r][j]));
  }
}

template <int V, int R = kOutputRows>
TF_INLINE void output_tile_of(int rows, const Word* v, const Word* p, int steps, float* o, bool first) {
  if constexpr (R > 1)
    if (rows < R) return output_tile_of<V, R - 1>(rows, v, p, steps, o, first);
  output_tile<R, V>(v, p, steps, o, first);
}

// O^T += V^T P^T over keys [begin, end) of the block, multiples of kStepElements; p at its first word of the
// block. kWide false: of the first half of the lanes only. ahead: asked for between tiles,
// so many lines before each.
template <bool kWide = true>
TF_INLINE void outputs(const Word* v, std::int64_t dim_v, std::int64_t key_block, const Word* p, int begin,
                       int end, float* o, bool first, AheadRows* ahead = nullptr, int ahead_lines = 0) {
  const OutputTiles tiles(dim_v);
  const std::int64_t tile_steps = value_tile_steps(key_block);
  const int from = begin / kElementsPerWord, steps = end / kElementsPerWord - from;
  p += from * kLanes;
  for (int t = 0; t < tiles.count; ++t) {
    const int rows = tiles.rows(t), row = tiles.first_row(t);
    if (ahead) ahead->ask_for(ahead_lines);
    output_tile_of<kWide ? kVecs : kVecs / 2>(rows, v + row * tile_steps + from * rows, p, steps,
                                              o + row * kLanes, first);
  }
}

// Words of long rows that are summed before a sum goes to memory: of the packed operand they are then 16 KiB,
// half of L1.
inline constexpr int kDepthWords = 4096 / kLanes;

// A product of rows that are read where they lie: C^T[row][lane] (+)= rows times packed.
struct RowTile {
  const Word* rows;  // kKeyRows, `stride` words apart
  std::int64_t stride;
  const Word* packed;  // [steps][kLanes]
  int steps;
  float* c;          // [kKeyRows][kLanes]
  bool first;        // c is written, not added to
  AheadRows* ahead;  // asked for meanwhile,
  int ahead_lines;   // so many lines
};

// kWide false: of the first half of the lanes only. kTiles of them, one below the other: half a tile alone
// has too few accumulators to hide their latency.
template <bool kWide = true, int kTiles = 1>
TF_NOINLINE void row_tile(const RowTile& x) {
  constexpr int R = kTiles * kKeyRows, V = kWide ? kVecs : kVecs / 2, kSlices = 8;
  F acc[R][V];  // from zero, as in output_tile
  TF_UNROLL for (int r = 0; r < R; ++r) TF_UNROLL for (int j = 0; j < V; ++j) acc[r][j] = zero();
  RowCursor<R> rows(x.rows, x.stride);
  const Word* packed = x.packed;
  constexpr int kLineWords = 64 / sizeof(Word);
  const Word* next = x.rows + R * x.stride;
  const int lines = static_cast<int>(ceil_div(R * x.stride, kLineWords * kSlices)),
            ahead_lines = (x.ahead_lines + kSlices - 1) / kSlices;
  TF_NO_UNROLL for (int c = 0; c < kSlices; ++c) {
    TF_NO_UNROLL for (int i = 0; i < lines; ++i, next += kLineWords) prefetch(next);
    x.ahead->ask_for(ahead_lines);
    multiply_rows<R, V>(rows, packed, (c + 1) * x.steps / kSlices - c * x.steps / kSlices, acc);
  }
  TF_UNROLL for (int r = 0; r < R; ++r) TF_UNROLL for (int j = 0; j < V; ++j) {
    float* at = x.c + r * kLanes + j * kVecLanes;
    store(at, x.first ? acc[r][j] : add(load(at), acc[r][j]));
  }
}

// Half tiles that are multiplied together.
inline constexpr int kHalfTiles = 2;

// ---- sums over lanes
// ------------------------------------------------------------------------------------------------------

//   dK[key][d] += dS^T Q, dV[key][d] += P^T dO      rows [group][key_block][kLaneWords], Q and dO packed in
//   steps
//                                                   [slice of kLanes columns][group][kLaneWords][kLanes]
struct LaneProduct {
  const Word *rows, *columns;
  std::int64_t rows_of_group, columns_of_group;  // words from group to group
  std::int64_t columns_of_slice;                 // words from slice to slice
  float* sums;                                   // [key_block][stride]
  std::int64_t stride, dim;
};

template <int V>
TF_NOINLINE void lane_product_tile(const LaneProduct& x, const std::uint8_t* groups, int count,
                                   const Word* rows, const Word* columns, float* c) {
  F acc[kKeyRows][V];
  // From zero, as in output_tile; asking for c here would hold up the operands (Zen 3: 2 % slower).
  TF_UNROLL for (int r = 0; r < kKeyRows; ++r) TF_UNROLL for (int j = 0; j < V; ++j) acc[r][j] = zero();
  for (int i = 0; i < count; ++i) {
    const Word *a = rows + groups[i] * x.rows_of_group, *p = columns + groups[i] * x.columns_of_group;
    TF_UNROLL_BY_4 for (int s = 0; s < kLaneWords; ++s, ++a, p += kLanes) {
      Words b[V];
      TF_UNROLL for (int j = 0; j < V; ++j) b[j] = load_words(p + j * kVecLanes);
      TF_UNROLL for (int r = 0; r < kKeyRows; ++r) {
        const Words w = broadcast_word(a + r * kLaneWords);
        TF_UNROLL for (int j = 0; j < V; ++j) acc[r][j] = multiply_add(acc[r][j], w, b[j]);
      }
    }
  }
  TF_UNROLL for (int r = 0; r < kKeyRows; ++r) TF_UNROLL for (int j = 0; j < V; ++j) {
    float* at = c + r * x.stride + j * kVecLanes;
    store(at, add(load(at), acc[r][j]));
  }
}

// Floats of a row of sums.
TF_INLINE std::int64_t lane_sum_stride(std::int64_t dim) { return round_up(dim, kVecLanes); }

// Tile `row` (a multiple of kKeyRows) and one slice of columns, over the `count` groups listed.
TF_INLINE void lane_product(const LaneProduct& x, const std::uint8_t* groups, int count, int row, int slice) {
  const Word *rows = x.rows + row * kLaneWords, *columns = x.columns + slice * x.columns_of_slice;
  float* c = x.sums + row * x.stride + slice * kLanes;
  const std::int64_t left = x.dim - slice * kLanes;
  if constexpr (kVecs == 2) {
    if (left <= kVecLanes)
      lane_product_tile<1>(x, groups, count, rows, columns, c);
    else
      lane_product_tile<kVecs>(x, groups, count, rows, columns, c);
  } else {
    const int vecs = static_cast<int>(min_of<std::int64_t>(ceil_div(left, kVecLanes), kVecs));
    if (vecs == kVecs)
      lane_product_tile<kVecs>(x, groups, count, rows, columns, c);
    else
      for (int j = 0; j < vecs; ++j)
        lane_product_tile<1>(x, groups, count, rows, columns + j * kVecLanes, c + j * kVecLanes);
  }
}

}  // namespace tileformer::TILEFORMER_UNIT
