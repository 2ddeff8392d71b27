// The checked attention problem: sizes and options with every default resolved. Plan, kernels and reference
// read this.
#pragma once

#include <cstdint>

#include "tileformer/attention.h"

namespace tileformer::attention {

inline constexpr std::int64_t kMaxHeadDim = 576;

// One sequence of the batch: where its rows stand in the views, and which keys exist.
struct Sequence {
  std::int64_t batch;        // index in the batch dimension of query, key, value, out, lse
  std::int64_t first_query;  // row of its query 0
  std::int64_t queries;
  std::int64_t first_key;  // row of its key 0
  std::int64_t keys;
  std::int64_t range_begin, range_end;  // keys outside are padding, 0 <= begin <= end <= keys
  std::int64_t diagonal;                // key position opposite query 0
};

struct Problem {
  std::int64_t sequences = 0;  // batch, or the number of packed sequences
  std::int64_t heads = 0, kv_heads = 0, group = 1;
  std::int64_t dim = 0, dim_v = 0;
  std::int64_t total_queries = 0;  // rows of query along seq, per batch index
  std::int64_t total_keys = 0;
  DType dtype = DType::f32;  // of query
  bool keys_bf16 = false;    // key and value are bf16
  float scale = 1;
  bool packed = false;
  std::int64_t page_size = 0;  // keys of a page; 0: key and value are not pools of pages
  bool paged() const { return page_size > 0; }
};

// Checks args completely; on success problem holds what follows from them.
Status check(const AttentionArgs& args, Problem* problem);

Sequence sequence(const AttentionArgs& args, const Problem& problem, std::int64_t index);

// First and last+1 key that query `i` of the sequence may see by length, range, causal and window (not by
// mask).
struct KeyRange {
  std::int64_t begin, end;  // begin >= end: none
};
KeyRange key_range(const AttentionArgs& args, const Sequence& s, std::int64_t query);

}  // namespace tileformer::attention
