// The gradient of one expert's weights is a product that sums over its rows, G = L^T R, with R's columns as
// lanes:
//
//   pack_columns      kLanes columns a group, two neighbours in a word are rows             R
//   weight_gradient   for each block of columns, for each slice of lines:
//                       C = L^T R for all groups, C -> grad_weight
//
// L is read as the product of slices reads weights that stand across. Included by kernels only.
#pragma once

#include "ops/moe/common/items.h"
#include "ops/moe/common/slice_product.h"
#include "ops/moe/common/store_some.h"
#include "ops/moe/grouped_matmul/row_at.h"

namespace tileformer::TILEFORMER_UNIT {

using moe::grouped::Block;
using moe::grouped::BlockRows;
using moe::grouped::WeightGradientArgs;

TF_NOINLINE std::int64_t column_words(std::int64_t rows) {
  return ceil_div(rows, kLanes) * kLaneWords * kLanes;
}

// A worker's buffers.
struct GradientScratch {
  Word* panel;  // of lines
  float* c;
  std::size_t bytes;

  explicit GradientScratch(const WeightGradientArgs& a, char* base = nullptr) {
    const std::int64_t rows = slice_rows(a.line_slice);
    const std::size_t panel_bytes = sizeof(Word) * round_up(panel_words(rows), 64) + 64;
    panel = reinterpret_cast<Word*>(base);
    c = reinterpret_cast<float*>(base + panel_bytes);
    bytes = (panel_bytes + sizeof(float) * rows * kLanes * a.max_groups + 4095) / 4096 * 4096;
  }
};

template <class T>
TF_NOINLINE void pack_block_rows(const WeightGradientArgs& a, const BlockRows& item) {
  const Block& block = a.blocks[item.block];
  const typename T::Element* row[kLanes];
  for (int l = 0; l < kLanes; ++l)
    row[l] = item.first_row + l < block.rows
                 ? row_at<T>(a.columns, block.first_row + item.first_row + l) + block.first_column
                 : nullptr;
  const std::int64_t columns =
      min_of<std::int64_t>(block.groups * kLanes, a.columns_count - block.first_column);
  pack_lane_steps<T>(row, columns, column_words(block.rows),
                     static_cast<Word*>(a.x) + block.x + item.first_row / kElementsPerWord * kLanes);
}

// C [group][rows, padded][kLanes] -> lines of grad_weight.
template <class G>
TF_NOINLINE void write_lines(const float* c, std::int64_t c_group, int lines, std::int64_t columns,
                             typename G::Element* grad, std::int64_t stride) {
  for (int i = 0; i < lines; ++i, c += kLanes, grad += stride)
    for (std::int64_t d = 0; d < columns; d += kVecLanes)
      store_some_of<G>(grad + d, load(c + d / kLanes * c_group + d % kLanes), columns - d);
}

template <class T, class G>
TF_NOINLINE void multiply_block(const WeightGradientArgs& a, const GradientScratch& x, const Block& block,
                                std::int64_t first_line) {
  const int lines = static_cast<int>(min_of(a.line_slice, a.lines_count - first_line));
  const std::int64_t columns =
      min_of<std::int64_t>(block.groups * kLanes, a.columns_count - block.first_column);
  auto* grad = static_cast<typename G::Element*>(a.grad) + block.expert * a.grad_expert +
               first_line * a.grad_line + block.first_column;
  if (block.rows == 0) {
    for (int i = 0; i < lines; ++i)
      __builtin_memset(grad + i * a.grad_line, 0, sizeof(*grad) * static_cast<std::size_t>(columns));
    return;
  }
  moe::WeightOperand across{};
  across.weight = {row_at<T>(a.lines, block.first_row), a.dtype, 0, 1, a.lines.stride};
  const std::int64_t part_rows = slice_rows(lines);
  slice_product<T>({&across, 0, 1, {first_line, 0}, lines, block.rows, nullptr},
                   {static_cast<const Word*>(a.x) + block.x, column_words(block.rows), block.groups,
                    columns - (block.groups - 1) * kLanes <= kLanes / 2, x.c, part_rows * kLanes, x.panel});
  write_lines<G>(x.c, part_rows * kLanes, lines, columns, grad, a.grad_line);
}

TF_NOINLINE void pack_columns(const WeightGradientArgs& a) {
  for_dtype(a.dtype, [&]<class T>(T) {
    for_items(a.workers.next_item, a.block_rows_count,
              [&](std::int64_t i) { pack_block_rows<T>(a, a.block_rows[i]); });
  });
}

TF_NOINLINE void weight_gradient(const WeightGradientArgs& a, int worker) {
  const GradientScratch x(a, a.workers.scratch + a.workers.scratch_bytes * worker);
  const std::int64_t slices = ceil_div(a.lines_count, a.line_slice);
  enter_unit();
  for_dtype(a.dtype, [&]<class T>(T) {
    for_items(a.workers.next_item, a.blocks_count * slices, [&](std::int64_t item) {
      const Block& block = a.blocks[item / slices];
      const std::int64_t first_line = item % slices * a.line_slice;
      if (a.grad_dtype == a.dtype)
        multiply_block<T, T>(a, x, block, first_line);
      else
        multiply_block<T, F32>(a, x, block, first_line);
    });
  });
  leave_unit();
}

TF_NOINLINE std::size_t weight_gradient_scratch(const WeightGradientArgs& a) {
  return GradientScratch(a).bytes;
}

}  // namespace tileformer::TILEFORMER_UNIT
