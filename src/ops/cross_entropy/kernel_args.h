// What the kernel is handed: plain data, checked.
#pragma once

#include <cstdint>

#include "tileformer/dtype.h"

namespace tileformer::cross_entropy_op {

struct KernelArgs {
  void* logits;  // [rows, vocab]
  DType dtype;
  std::int64_t rows, vocab, row_stride;  // in elements
  const std::int64_t* target;            // [rows]
  std::int64_t target_stride, ignore_index;
  float* loss;
  float* lse;              // null: not wanted
  const float* row_scale;  // null: 1
  std::int64_t loss_stride, lse_stride, row_scale_stride;
  bool gradient;
  float label_smoothing, z_loss, softcap;

  std::int64_t rows_per_item;
  std::int64_t* next_row;  // shared by all workers; starts at 0
};

// A compiled kernel: takes rows until none is left.
struct Unit {
  const char* name;  // "avx2_fma"
  void (*run)(const KernelArgs&);
};

}  // namespace tileformer::cross_entropy_op
