// What the kernels of grouped_matmul are handed: plain data, checked.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ops/moe/common/weight_operand.h"

namespace tileformer::moe::grouped {

// [rows, columns], rows `stride` elements apart.
struct Rows {
  void* data;
  std::int64_t stride;
};

// What all workers of a phase share: each takes items until none is left.
struct Workers {
  int count;
  char* scratch;
  std::size_t scratch_bytes;  // of a worker
  std::int64_t* next_item;    // starts at 0
};

// Rows of one expert that are multiplied together.
struct Run {
  std::int64_t expert, first_row;
  int rows;
  bool streamed;   // few rows: weights stream, the rows are broadcast against them
  std::int64_t x;  // where they stand packed, in words of the wave's buffer
};

// kLanes rows of a run, or all of its rows if it is streamed.
struct Group {
  int run;
  int index;  // in the run
};

// out = weight rows + bias, one wave: runs whose rows are packed at the same time.
struct ProductArgs {
  Rows rows, out;
  DType dtype;
  WeightOperand weights;
  std::int64_t in_dim, out_dim;
  std::int64_t out_slice;  // rows of weights of a work item, a multiple of the unit's row step

  const Run* runs;
  std::int64_t runs_count;
  const Group* groups;
  std::int64_t groups_count;
  int max_groups;  // of a run
  void* x;
  Workers workers;
};

// Columns of one expert's grad_weight, summed over all of its rows.
struct Block {
  std::int64_t expert, first_row, rows;  // no rows: zeros
  std::int64_t first_column;
  int groups;      // of kLanes columns
  std::int64_t x;  // where they stand packed, in words of the wave's buffer
};

// kLanes rows of a block.
struct BlockRows {
  int block;
  std::int64_t first_row;  // in the block
};

// grad[expert][line][column] = sum over rows of lines[row][line] * columns[row][column], one wave. Columns
// are neighbours in memory, so that of grad_out and rows the one or the other has the lines.
struct WeightGradientArgs {
  Rows lines, columns;
  DType dtype;
  std::int64_t lines_count, columns_count;
  std::int64_t line_slice;  // lines of a work item, a multiple of the unit's row step
  void* grad;
  DType grad_dtype;
  std::int64_t grad_expert, grad_line;  // strides

  const Block* blocks;
  std::int64_t blocks_count;
  const BlockRows* block_rows;
  std::int64_t block_rows_count;
  int max_groups;
  void* x;
  Workers workers;
};

struct BiasGradientArgs {
  Rows grad_out;
  DType dtype;
  std::int64_t experts, out_dim;
  const std::int64_t* offsets;  // [experts + 1]: the first row of each expert
  void* grad;
  DType grad_dtype;
  std::int64_t grad_expert;
  Workers workers;
};

// A compiled kernel. Between packing and multiplying all workers wait.
struct Unit {
  const char* name;   // "avx2_fma"
  const char* label;  // "avx2-fma"
  int lanes;          // rows of a tile
  int row_step;       // rows of weights of a tile
  int depth;          // elements of `in` of a panel of weights
  int streamed_rows;  // a run of at most so many rows is streamed
  bool bf16_only;     // multiplies bf16, not fp32
  std::size_t word_bytes;

  std::int64_t (*run_words)(const ProductArgs&, int rows, bool streamed);
  std::size_t (*product_scratch)(const ProductArgs&);
  void (*pack)(const ProductArgs&);
  void (*multiply)(const ProductArgs&, int worker);

  std::int64_t (*column_words)(std::int64_t rows);  // of kLanes columns
  std::size_t (*weight_gradient_scratch)(const WeightGradientArgs&);
  void (*pack_columns)(const WeightGradientArgs&);
  void (*weight_gradient)(const WeightGradientArgs&, int worker);
  void (*bias_gradient)(const BiasGradientArgs&);
};

}  // namespace tileformer::moe::grouped
