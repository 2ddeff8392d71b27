// The gradient of a block of rows of an expert's weights: sums over the expert's pairs. Included by kernels
// only.
#pragma once

#include "ops/moe/common/store_some.h"
#include "ops/moe/experts/backward/kernel_args.h"

namespace tileformer::TILEFORMER_UNIT {

using moe::ExpertOperand;

// Rows and columns whose sums are worked on at a time: 96 KiB, beside as much of the rows' operand.
inline constexpr int kBlockRows = 96 / kKeyRows * kKeyRows;
inline constexpr int kBlockColumns = 256;
static_assert(kBlockColumns % kLanes == 0 && kBlockRows % 16 == 0);
// Groups that are summed before a sum goes to memory: of a slice of columns they are then half of L1, as in
// the products of panels.
inline constexpr int kSumGroups = kDepthWords / kLaneWords;
static_assert(kSumGroups >= 1 && kSumGroups <= 255);

struct GroupList {
  std::uint8_t at[kSumGroups];
  TF_MEMBER constexpr GroupList() : at() {
    for (int i = 0; i < kSumGroups; ++i) at[i] = static_cast<std::uint8_t>(i);
  }
};
inline constexpr GroupList kFirstGroups;

// Words from group to group whose tiles, kKeyRows rows each, fall into different sets of L1.
TF_INLINE std::int64_t spread_stride(std::int64_t words) {
  return round_up(words, 4096 / static_cast<int>(sizeof(Word))) + kKeyRows * kLaneWords;
}

// G[row][column] = sum over pairs of rows[row] * columns[column].
struct PairSums {
  const Word* rows;  // [group][row][kLaneWords]
  std::int64_t rows_group;
  const Word* columns;  // [slice of kLanes columns][group][kLaneWords][kLanes]
  std::int64_t columns_group, columns_slice;
  int groups;
  int row_count;
  std::int64_t column_count;  // at most kBlockColumns
  float* sums;                // [kBlockRows][stride]
  std::int64_t stride;
  bool first;  // sums start here
};

TF_NOINLINE void add_pairs(const PairSums& s) {
  if (s.first)
    for (int r = 0; r < round_up(s.row_count, kKeyRows); ++r)
      __builtin_memset(s.sums + r * s.stride, 0, sizeof(float) * lane_sum_stride(s.column_count));
  const int slices = static_cast<int>(ceil_div(s.column_count, kLanes));
  for (int g = 0; g < s.groups; g += kSumGroups) {
    const LaneProduct product{s.rows + g * s.rows_group,
                              s.columns + g * s.columns_group,
                              s.rows_group,
                              s.columns_group,
                              s.columns_slice,
                              s.sums,
                              s.stride,
                              s.column_count};
    const int count = min_of(kSumGroups, s.groups - g);
    const std::int64_t bytes = count * s.columns_group * static_cast<int>(sizeof(Word));
    const int ahead_lines = static_cast<int>(ceil_div(bytes / 64, ceil_div(s.row_count, kKeyRows)));
    for (int slice = 0; slice < slices; ++slice) {
      AheadRows ahead =
          ahead_bytes(slice + 1 < slices ? product.columns + (slice + 1) * s.columns_slice : nullptr, bytes);
      for (int row = 0; row < s.row_count; row += kKeyRows) {
        ahead.ask_for(ahead_lines);
        lane_product(product, kFirstGroups.at, count, row, slice);
      }
    }
  }
}

// Sums [rows][stride] -> rows from first_row on, columns from first_column on, of an expert's gradient.
template <class G>
TF_NOINLINE void write_sums(const float* sums, std::int64_t stride, int rows, std::int64_t columns,
                            const ExpertOperand& to, std::int64_t expert, std::int64_t first_row,
                            std::int64_t first_column) {
  auto* grad = static_cast<typename G::Element*>(const_cast<void*>(to.data)) + expert * to.expert +
               first_row * to.row + first_column * to.column;
  if (to.column == 1) {
    for (int r = 0; r < rows; ++r)
      for (std::int64_t d = 0; d < columns; d += kVecLanes)
        store_some_of<G>(grad + r * to.row + d, load(sums + r * stride + d), columns - d);
    return;
  }
  for (std::int64_t d = 0; d < columns; d += kVecLanes)
    for (int r = 0; r < rows; r += kVecLanes) {
      F block[kVecLanes];
      TF_UNROLL for (int i = 0; i < kVecLanes; ++i) block[i] = load(sums + (r + i) * stride + d);
      transpose(block);
      TF_UNROLL for (int i = 0; i < kVecLanes; ++i) if (i < columns - d)
          store_some_of<G>(grad + (d + i) * to.column + r, block[i], rows - r);
    }
}

// The same matrix with rows and columns exchanged.
TF_INLINE ExpertOperand exchanged(const ExpertOperand& w) {
  return {w.data, w.dtype, w.expert, w.column, w.row};
}

}  // namespace tileformer::TILEFORMER_UNIT
