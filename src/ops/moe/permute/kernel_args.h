// What the kernels are handed: plain data, checked.
#pragma once

#include <cstdint>

#include "ops/moe/dispatch.h"

namespace tileformer::permute_op {

struct Rows {
  void* data;           // [rows, hidden], unit stride in the last dimension
  std::int64_t stride;  // in elements
};

// [tokens, k]; strides in elements.
struct Weights {
  void* data;  // null: not wanted
  DType dtype;
  std::int64_t token, slot;
};

// Which rows belong to which token.
struct TokenRows {
  const std::int64_t* begin;  // [tokens + 1]; token t has row[begin[t]] to row[begin[t + 1]], rising
  const std::int64_t* row;    // [rows]; those from begin[tokens] on belong to no token
};

// Items are taken so many at a time from a counter that all workers share and that starts at 0.
struct Items {
  std::int64_t count, step;
  std::int64_t* next;
};

// rows[r] = tokens[pair[r].token] and its source; items are rows.
struct CopyArgs {
  Rows tokens, rows;
  std::int64_t row_bytes;
  int element_size;
  const moe::Pair* pair;
  std::int64_t pairs;  // rows from here on are 0
  std::int64_t k;
  std::int64_t* source;
  bool stream;  // past the caches
  Items items;
};

// out[t] = sum of weights * rows; items are tokens.
struct SumArgs {
  Rows rows, out;
  DType dtype;
  std::int64_t hidden, k;
  const std::int64_t* source;  // [rows]
  std::int64_t source_stride;
  Weights weights;
  TokenRows map;
  Items items;
};

// The gradients of that; items are tokens, then the rows that belong to none.
struct SpreadArgs {
  Rows rows, grad_out, grad_rows;  // data of grad_rows null: not wanted
  DType dtype;
  std::int64_t hidden, tokens, k;
  const std::int64_t* source;
  std::int64_t source_stride;
  Weights weights, grad_weights;
  TokenRows map;
  Items items;
};

// The compiled kernels of a unit: they take items until none is left.
struct Unit {
  const char* name;  // "avx2_fma"
  void (*copy)(const CopyArgs&);
  void (*sum)(const SumArgs&);
  void (*spread)(const SpreadArgs&);
};

}  // namespace tileformer::permute_op
