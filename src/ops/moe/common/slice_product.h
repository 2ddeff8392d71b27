// A slice of the rows of an expert's weights times packed rows of tokens: C^T[row][lane] of every group of
// kLanes tokens. Weights become a panel on the chip, some elements deep, which all groups use. Included by
// kernels only.
#pragma once

#include "ops/moe/common/code_panel.h"
#include "ops/moe/common/weight_operand.h"
#include "tile/pack.h"

namespace tileformer::TILEFORMER_UNIT {

using moe::ExpertOperand;

inline constexpr int kDepth = kDepthWords * kElementsPerWord;
static_assert(kDepth % kStepElements == 0 && kDepth % 32 == 0);

// Words of a panel of `rows` rows, whichever way the weights are stored.
TF_INLINE std::int64_t panel_words(std::int64_t rows) {
  return max_of(rows * key_stride(kDepth), value_words(output_rows(rows), kDepth));
}

// Weights of one product as it takes them: `parts` blocks of `rows` rows each, from first_row[part] on.
struct WeightSlice {
  const moe::WeightOperand* w;
  std::int64_t expert;
  int parts;
  std::int64_t first_row[2];
  int rows;
  std::int64_t elements;  // of a row
  const void* next;       // the first row of the slice that comes next; null: not known
};

// The other operand and the result.
struct SliceProduct {
  const Word* packed;         // [group][steps][kLanes]
  std::int64_t packed_group;  // words from group to group
  int groups;
  bool half;            // the last group has no more than half of the lanes
  float* c;             // [group][part][rows, padded][kLanes]
  std::int64_t c_part;  // floats from part to part; a group has all parts
  Word* panel;
  bool add = false;  // to what c holds
};

TF_INLINE int padded_rows(int rows) { return static_cast<int>(round_up(rows, kKeyRows)); }
// Rows of C that a part of `rows` rows takes, whole tiles and whole vectors.
TF_INLINE std::int64_t slice_rows(std::int64_t rows) { return round_up(round_up(rows, kKeyRows), 16); }

// The panel after the one at `from`: of the same slice, then of the next one. W: how weights are stored.
template <class W>
TF_INLINE AheadRows next_panel(const WeightSlice& s, int part, std::int64_t from) {
  using E = typename W::Element;
  const ExpertOperand& w = s.w->weight;
  const auto* base = static_cast<const E*>(w.data) + s.expert * w.expert;
  const bool last = from + kDepth >= s.elements;
  const auto* next = static_cast<const E*>(s.next);
  const E* at = !last  ? base + s.first_row[part] * w.row + stored<W>(from + kDepth)
                : next ? next + (s.first_row[part] - s.first_row[0]) * w.row
                       : nullptr;
  const std::int64_t elements = min_of<std::int64_t>(kDepth, last ? s.elements : s.elements - from - kDepth);
  AheadRows rows;
  rows.at = reinterpret_cast<const char*>(at);
  rows.stride = w.row * static_cast<std::int64_t>(sizeof(E));
  rows.rows = at ? s.rows : 0;
  rows.row_lines = static_cast<int>(ceil_div(stored<W>(elements) * static_cast<std::int64_t>(sizeof(E)), 64));
  return rows;
}

// Rows of weights that are stored one after the other.
template <class W>
TF_NOINLINE void row_panel_product(const WeightSlice& s, const SliceProduct& x, std::int64_t from,
                                   int depth) {
  const ExpertOperand& w = s.w->weight;
  const int padded = padded_rows(s.rows);
  const std::int64_t stride = key_stride(depth), part_words = padded * stride;
  AheadRows ahead[2];
  for (int p = 0; p < s.parts; ++p) {
    Word* panel = x.panel + p * part_words;
    if constexpr (kIsCode<W>) {
      dequantise_rows<W>(*s.w, s.expert, s.first_row[p], s.rows, padded, from, depth, panel);
    } else {
      const auto* base = static_cast<const typename W::Element*>(w.data) + s.expert * w.expert +
                         s.first_row[p] * w.row + from;
      pack_keys<W>(StridedRows<W>{base, w.row}, s.rows, padded, depth, panel);
    }
    ahead[p] = next_panel<W>(s, p, from);
  }
  const int steps = steps_of(depth), tiles = x.groups * (padded / kKeyRows);
  const int ahead_lines = static_cast<int>(ceil_div(ahead[0].rows * ahead[0].row_lines, tiles));
  const Word* at = x.packed + from / kElementsPerWord * kLanes;
  for (int g = 0; g < x.groups; ++g, at += x.packed_group) {
    const bool wide = g + 1 < x.groups || !x.half;
    for (int p = 0; p < s.parts; ++p) {
      RowTile tile{x.panel + p * part_words, stride,    at,         steps, x.c + (g * s.parts + p) * x.c_part,
                   from == 0 && !x.add,      &ahead[p], ahead_lines};
      const float* end = tile.c + padded * kLanes;
      const auto next = [&](int tiles) {
        tile.rows += tiles * kKeyRows * stride;
        tile.c += tiles * kKeyRows * kLanes;
      };
      if (TF_UNLIKELY(!wide)) {
        for (; tile.c + kHalfTiles * kKeyRows * kLanes <= end; next(kHalfTiles))
          row_tile<false, kHalfTiles>(tile);
        if (tile.c < end) row_tile<false>(tile);
        continue;
      }
      for (; tile.c < end; next(1)) row_tile<true>(tile);
    }
  }
}

// Rows that stand across: neighbours in memory are elements of different rows.
template <class T>
TF_NOINLINE void column_panel_product(const WeightSlice& s, const SliceProduct& x, std::int64_t from,
                                      int depth) {
  const ExpertOperand& w = s.w->weight;
  const int padded = static_cast<int>(round_up(depth, kStepElements));
  const std::int64_t part_words = value_words(output_rows(s.rows), kDepth);
  for (int p = 0; p < s.parts; ++p) {
    const auto* base = static_cast<const typename T::Element*>(w.data) + s.expert * w.expert +
                       s.first_row[p] + from * w.column;
    F nonfinite;
    pack_values<T>(StridedRows<T>{base, w.column}, depth, padded, s.rows, kDepth, x.panel + p * part_words,
                   &nonfinite);
  }
  const std::int64_t bytes = std::int64_t{steps_of(depth)} * kLanes * static_cast<int>(sizeof(Word));
  const int ahead_lines = static_cast<int>(ceil_div(bytes / 64, s.parts * ceil_div(s.rows, kOutputRows)));
  const Word* at = x.packed + from / kElementsPerWord * kLanes;
  for (int g = 0; g < x.groups; ++g, at += x.packed_group) {
    const bool wide = g + 1 < x.groups || !x.half, first = from == 0 && !x.add;
    AheadRows ahead = ahead_bytes(g + 1 < x.groups ? at + x.packed_group : nullptr, bytes);
    for (int p = 0; p < s.parts; ++p) {
      float* c = x.c + (g * s.parts + p) * x.c_part;
      const Word* panel = x.panel + p * part_words;
      if (TF_LIKELY(wide))
        outputs<true>(panel, s.rows, kDepth, at, 0, padded, c, first, &ahead, ahead_lines);
      else
        outputs<false>(panel, s.rows, kDepth, at, 0, padded, c, first, &ahead, ahead_lines);
    }
  }
}

template <class W>
TF_INLINE void slice_product(const WeightSlice& s, const SliceProduct& x) {
  if (s.elements == 0 && !x.add)
    __builtin_memset(x.c, 0, sizeof(float) * static_cast<std::size_t>(x.groups * s.parts * x.c_part));
  for (std::int64_t from = 0; from < s.elements; from += kDepth) {
    const int depth = static_cast<int>(min_of<std::int64_t>(kDepth, s.elements - from));
    if constexpr (!kIsCode<W>)
      if (s.w->weight.column != 1) {
        column_panel_product<W>(s, x, from, depth);
        continue;
      }
    row_panel_product<W>(s, x, from, depth);
  }
}

}  // namespace tileformer::TILEFORMER_UNIT
