// The cube of AMX: tiles of 16 rows x 64 bytes. Four accumulators (2 x 2) share two A and two B tiles, so
// that a load feeds two products. The words are those of cube_register.h.
//
//   S^T[key][query] = K Q^T     A: 16 keys x 32 of dim, rows of K.        B: 16 pairs of dim x 16 queries.
//   O^T[d][query]  += V^T P^T   A: 16 of d x 32 keys, V transposed.       B: 16 pairs of keys x 16 queries.
//
// Accumulators leave through memory: scores go to an L1 buffer, from where the softmax takes them while the
// next tile multiplies. Tile and vector instructions overlap when they are interleaved (measured on Emerald
// Rapids).
#pragma once

#include "tile/ahead.h"
#include "tile/rows.h"

namespace tileformer::TILEFORMER_UNIT {

inline constexpr int kLanes = kVecs * kVecLanes;
inline constexpr int kLaneWords = kLanes / 2;  // of a row of P or dS: one tile row
inline constexpr int kStepElements = 32;       // summed in one step
static_assert(kVecLanes == 16 && kVecs == 2 && kKeyRows == 32 && kElementsPerWord == 2);
inline constexpr int kTileRows = 16;
inline constexpr int kTileWords = 16;  // of a row
inline constexpr std::int64_t kLaneStride =
    4 * kLanes;  // bytes between rows of packed operands, scores and O

TF_INLINE void enter_unit() { configure_tiles(); }
TF_INLINE void leave_unit() { release_tiles(); }

// The compiler does not know that tile loads read memory.
TF_INLINE void tiles_see_stores() { asm volatile("" ::: "memory"); }

// ---- packed operands
// -----------------------------------------------------------------------------------------------

TF_INLINE std::int64_t words_of(std::int64_t elements) { return round_up(ceil_div(elements, 2), kTileWords); }
TF_INLINE int steps_of(std::int64_t dim) { return static_cast<int>(words_of(dim)); }
TF_INLINE std::int64_t query_words(std::int64_t dim) { return words_of(dim) * kLanes; }
TF_INLINE std::int64_t key_stride(std::int64_t dim) { return words_of(dim); }
TF_INLINE std::int64_t output_rows(std::int64_t dim_v) { return round_up(dim_v, kTileRows); }
// V^T: [d / 16][key / 32][16 d][16 pairs of keys].
TF_INLINE std::int64_t value_words(std::int64_t dim_v, std::int64_t key_block) {
  return output_rows(dim_v) * (key_block / 2);
}

template <class T, class Rows>
TF_NOINLINE void pack_values(const Rows& v, int keys, int padded, std::int64_t dim_v, std::int64_t key_block,
                             Word* out, F* nonfinite) {
  static_assert(kRunRows == 16);
  const std::int64_t tile_words = kTileRows * kTileWords, row_of_tiles = key_block / 32 * tile_words;
  F bad = zero();
  // The 32 rows of a tile, and of the next one.
  RowRun<T> run[2], next[2];
  const auto load_next = [&](int i) {
    for (int h = 0; h < 2; ++h)
      if (i + h * kRunRows < keys) next[h] = v.run(i + h * kRunRows);
  };
  load_next(0);
  for (int i = 0; i < padded; i += 32) {
    for (int h = 0; h < 2; ++h) run[h] = next[h];
    load_next(i + 32);
    for (std::int64_t d = 0; d < dim_v; d += 2 * kVecLanes) {
      Words block[2][kVecLanes];
      TF_UNROLL for (int pair = 0; pair < 16; ++pair) {
        const int key = i + 2 * pair, half = pair / 8, row = 2 * pair % kRunRows;
        const typename T::Element* at[2];
        for (int e = 0; e < 2; ++e) {
          at[e] = key + e < keys ? run[half].row(row + e) + d : nullptr;
          if (key + e + 32 < keys) prefetch(next[half].row(row + e) + d);
        }
        Words words[2];
        interleave_rows<T>(at, dim_v - d, words);
        for (int h = 0; h < 2; ++h) {
          bad = multiply_add(bad, words[h], zero_words());
          block[h][pair] = words[h];
        }
      }
      for (int h = 0; h < 2 && d + h * kTileRows < dim_v; ++h) {
        transpose_words(block[h]);
        Word* tile = out + (d / kTileRows + h) * row_of_tiles + i / 32 * tile_words;
        TF_UNROLL for (int r = 0; r < kTileRows; ++r) store_words(tile + r * kTileWords, block[h][r]);
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

struct TileMax {
  F lane[kVecs];
};

// 32 keys x 32 queries, stored to s [32][kLanes]; the companion's slices run between the products of a step.
template <class Companion>
TF_NOINLINE TileMax score_tile(const Word* k, std::int64_t stride, const Word* q, int words, float* s,
                               Companion companion) {
  const std::int64_t k_stride = 4 * stride;
  const int steps = words / kTileWords;
  tiles_see_stores();
  TF_TILE_ZERO(0);
  TF_TILE_ZERO(1);
  TF_TILE_ZERO(2);
  TF_TILE_ZERO(3);
  companion.begin();
  for (int step = 0, slice = 0; step < steps; ++step) {
    const int slices_end = (step + 1) * Companion::kSlices / steps;
    TF_TILE_LOAD(4, k + step * kTileWords, k_stride);
    TF_TILE_LOAD(6, q + step * kTileWords * kLanes, kLaneStride);
    TF_TILE_DOT(0, 4, 6);
    const int slices_middle = (slice + slices_end) / 2;
    for (; slice < slices_middle; ++slice) companion.slice(slice);
    TF_TILE_LOAD(7, q + step * kTileWords * kLanes + kVecLanes, kLaneStride);
    TF_TILE_DOT(1, 4, 7);
    TF_TILE_LOAD(5, k + step * kTileWords + kTileRows * stride, k_stride);
    TF_TILE_DOT(2, 5, 6);
    TF_TILE_DOT(3, 5, 7);
    for (; slice < slices_end; ++slice) companion.slice(slice);
  }
  companion.end();
  TF_TILE_STORE(0, s, kLaneStride);
  TF_TILE_STORE(1, s + kVecLanes, kLaneStride);
  TF_TILE_STORE(2, s + kTileRows * kLanes, kLaneStride);
  TF_TILE_STORE(3, s + kTileRows * kLanes + kVecLanes, kLaneStride);
  tiles_see_stores();
  TileMax largest = {{load(s), load(s + kVecLanes)}};
  for (int r = 1; r < kKeyRows; ++r)
    TF_UNROLL for (int j = 0; j < kVecs; ++j) largest.lane[j] =
        max(largest.lane[j], load(s + r * kLanes + j * kVecLanes));
  return largest;
}

// Two tiles of 16 d; `second` false: one. kWide false: of the first 16 lanes only.
template <bool kWide>
TF_NOINLINE void output_tiles(const Word* v, std::int64_t row_of_tiles, const Word* p, int steps, float* o,
                              bool first, bool second) {
  float* o2 = o + kTileRows * kLanes;
  if (first) {
    TF_TILE_ZERO(0);
    TF_TILE_ZERO(1);
    TF_TILE_ZERO(2);
    TF_TILE_ZERO(3);
  } else {
    TF_TILE_LOAD(0, o, kLaneStride);
    if constexpr (kWide) TF_TILE_LOAD(1, o + kVecLanes, kLaneStride);
    if (second) {
      TF_TILE_LOAD(2, o2, kLaneStride);
      if constexpr (kWide) TF_TILE_LOAD(3, o2 + kVecLanes, kLaneStride);
    }
  }
  for (int step = 0; step < steps; ++step) {
    const Word* a = v + step * kTileRows * kTileWords;
    const Word* b = p + step * kTileWords * kLanes;
    TF_TILE_LOAD(4, a, 64);
    TF_TILE_LOAD(6, b, kLaneStride);
    TF_TILE_DOT(0, 4, 6);
    if constexpr (kWide) {
      TF_TILE_LOAD(7, b + kVecLanes, kLaneStride);
      TF_TILE_DOT(1, 4, 7);
    }
    if (second) {
      TF_TILE_LOAD(5, a + row_of_tiles, 64);
      TF_TILE_DOT(2, 5, 6);
      if constexpr (kWide) TF_TILE_DOT(3, 5, 7);
    }
  }
  TF_TILE_STORE(0, o, kLaneStride);
  if constexpr (kWide) TF_TILE_STORE(1, o + kVecLanes, kLaneStride);
  if (second) {
    TF_TILE_STORE(2, o2, kLaneStride);
    if constexpr (kWide) TF_TILE_STORE(3, o2 + kVecLanes, kLaneStride);
  }
}

// O^T += V^T P^T over keys [begin, end) of the block, multiples of kStepElements; p at its first word of the
// block. kWide false: of the first half of the lanes only. ahead: asked for between tiles,
// so many lines before each.
template <bool kWide = true>
TF_INLINE void outputs(const Word* v, std::int64_t dim_v, std::int64_t key_block, const Word* p, int begin,
                       int end, float* o, bool first, AheadRows* ahead = nullptr, int ahead_lines = 0) {
  const std::int64_t row_of_tiles = key_block / 32 * kTileRows * kTileWords;
  v += begin / 32 * kTileRows * kTileWords;
  p += begin / 2 * kLanes;
  tiles_see_stores();
  for (std::int64_t d = 0; d < dim_v; d += 2 * kTileRows) {
    if (ahead) ahead->ask_for(2 * ahead_lines);
    output_tiles<kWide>(v + d / kTileRows * row_of_tiles, row_of_tiles, p, (end - begin) / 32, o + d * kLanes,
                        first, d + kTileRows < dim_v);
  }
  tiles_see_stores();
}

// Words of long rows that are summed before a sum goes to memory, which takes as long as 16 of them.
inline constexpr int kDepthWords = 512;

// A product of rows that are read where they lie: C^T[row][lane] (+)= rows times packed.
struct RowTile {
  const Word* rows;  // kKeyRows, `stride` words apart
  std::int64_t stride;
  const Word* packed;  // [steps][kLanes]
  int steps;           // words, a multiple of kTileWords
  float* c;            // [kKeyRows][kLanes]
  bool first;          // c is written, not added to
  AheadRows* ahead;    // asked for meanwhile,
  int ahead_lines;     // so many lines
};

// Half tiles that are multiplied together.
inline constexpr int kHalfTiles = 1;

// kWide false: of the first half of the lanes only.
template <bool kWide = true, int kTiles = 1>
TF_NOINLINE void row_tile(const RowTile& x) {
  static_assert(kTiles == 1);
  const std::int64_t row_stride = 4 * x.stride;
  const int steps = x.steps / kTileWords;
  float* c2 = x.c + kTileRows * kLanes;
  tiles_see_stores();
  if (x.first) {
    TF_TILE_ZERO(0);
    TF_TILE_ZERO(1);
    TF_TILE_ZERO(2);
    TF_TILE_ZERO(3);
  } else {
    TF_TILE_LOAD(0, x.c, kLaneStride);
    TF_TILE_LOAD(2, c2, kLaneStride);
    if constexpr (kWide) {
      TF_TILE_LOAD(1, x.c + kVecLanes, kLaneStride);
      TF_TILE_LOAD(3, c2 + kVecLanes, kLaneStride);
    }
  }
  const int ahead_lines = (x.ahead_lines + steps - 1) / steps;
  for (int step = 0; step < steps; ++step) {
    const Word *a = x.rows + step * kTileWords, *b = x.packed + step * kTileWords * kLanes;
    TF_TILE_LOAD(4, a, row_stride);
    TF_TILE_LOAD(6, b, kLaneStride);
    TF_TILE_DOT(0, 4, 6);
    x.ahead->ask_for(ahead_lines);
    if constexpr (kWide) {
      TF_TILE_LOAD(7, b + kVecLanes, kLaneStride);
      TF_TILE_DOT(1, 4, 7);
    }
    TF_TILE_LOAD(5, a + kTileRows * x.stride, row_stride);
    TF_TILE_DOT(2, 5, 6);
    if constexpr (kWide) TF_TILE_DOT(3, 5, 7);
  }
  TF_TILE_STORE(0, x.c, kLaneStride);
  TF_TILE_STORE(2, c2, kLaneStride);
  if constexpr (kWide) {
    TF_TILE_STORE(1, x.c + kVecLanes, kLaneStride);
    TF_TILE_STORE(3, c2 + kVecLanes, kLaneStride);
  }
  tiles_see_stores();
}

// ---- sums over lanes
// ------------------------------------------------------------------------------------------------------

//   dK[key][d] += dS^T Q, dV[key][d] += P^T dO      A: 16 keys x 32 lanes, rows
//   [group][key_block][kLaneWords].
//                                                   B: 16 pairs of lanes x 16 d, packed in steps
//                                                   [slice of kLanes columns][group][kLaneWords][kLanes].
struct LaneProduct {
  const Word *rows, *columns;
  std::int64_t rows_of_group, columns_of_group;  // words from group to group
  std::int64_t columns_of_slice;                 // words from slice to slice
  float* sums;                                   // [key_block][stride]
  std::int64_t stride, dim;
};

// Floats of a row of sums: tiles are stored whole.
TF_INLINE std::int64_t lane_sum_stride(std::int64_t dim) { return round_up(dim, kLanes); }

// Tile `row` (a multiple of kKeyRows) and one slice of columns, over the `count` groups listed.
[[maybe_unused]] TF_NOINLINE void lane_product(const LaneProduct& x, const std::uint8_t* groups, int count,
                                               int row, int slice) {
  const Word *rows = x.rows + row * kLaneWords, *columns = x.columns + slice * x.columns_of_slice;
  float* c = x.sums + row * x.stride + slice * kLanes;
  const std::int64_t c_stride = 4 * x.stride;
  float* c2 = c + kTileRows * x.stride;
  tiles_see_stores();
  TF_TILE_LOAD(0, c, c_stride);
  TF_TILE_LOAD(1, c + kVecLanes, c_stride);
  TF_TILE_LOAD(2, c2, c_stride);
  TF_TILE_LOAD(3, c2 + kVecLanes, c_stride);
  for (int i = 0; i < count; ++i) {
    const Word *a = rows + groups[i] * x.rows_of_group, *b = columns + groups[i] * x.columns_of_group;
    TF_TILE_LOAD(4, a, 4 * kLaneWords);
    TF_TILE_LOAD(6, b, kLaneStride);
    TF_TILE_DOT(0, 4, 6);
    TF_TILE_LOAD(7, b + kVecLanes, kLaneStride);
    TF_TILE_DOT(1, 4, 7);
    TF_TILE_LOAD(5, a + kTileRows * kLaneWords, 4 * kLaneWords);
    TF_TILE_DOT(2, 5, 6);
    TF_TILE_DOT(3, 5, 7);
  }
  TF_TILE_STORE(0, c, c_stride);
  TF_TILE_STORE(1, c + kVecLanes, c_stride);
  TF_TILE_STORE(2, c2, c_stride);
  TF_TILE_STORE(3, c2 + kVecLanes, c_stride);
  tiles_see_stores();
}

}  // namespace tileformer::TILEFORMER_UNIT
