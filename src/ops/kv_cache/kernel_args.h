// What the append kernel is handed: plain data, checked.
#pragma once

#include <cstdint>

#include "tileformer/dtype.h"

namespace tileformer::kv_cache {

// Rows of [tokens, heads, dim] on their way into [pages, heads, page_size, dim]. Strides in elements.
struct Rows {
  const void* from;
  DType from_dtype;
  std::int64_t from_token, from_head;

  void* to;
  DType to_dtype;
  std::int64_t to_page, to_head, to_row;
  float* scale;  // of quantised rows
  std::int64_t scale_page, scale_head, scale_row;

  std::int64_t dim;
};

struct RotaryRows {
  const void *cos, *sin;  // [positions, half]; null: nothing rotates
  DType dtype;
  std::int64_t cos_row, sin_row;
  const std::int64_t* positions;  // [tokens]
  std::int64_t positions_stride;
  std::int64_t half;
  bool interleaved;
};

struct KernelArgs {
  Rows rows[2];  // keys, values
  int tensors;   // 1 or 2 of them
  std::int64_t tokens, heads, page_size;
  const std::int64_t* slots;  // [tokens], -1: skip; null: token t goes to slot t
  std::int64_t slots_stride;
  RotaryRows rotary;  // of rows[0]
  bool stream;        // past the caches

  std::int64_t tokens_per_item;
  std::int64_t* next_token;  // shared by all workers; starts at 0
};

// A compiled kernel: takes tokens until none is left.
struct Unit {
  const char* name;  // "avx2_fma"
  void (*run)(const KernelArgs&);
};

}  // namespace tileformer::kv_cache
