// What a kernel is handed: plain data, complete, decided. Shared by the plan (baseline code) and the kernels.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/operand.h"

namespace tileformer::attention {

using tileformer::Operand;

// A run of lane groups of one sequence and kv head.
struct Task {
  std::int64_t sequence;
  std::int64_t first_group, groups;
  double cost;  // scores to compute, for the order
};

// Decode: a run of kv heads and of splits of one sequence.
struct DecodeItem {
  std::int64_t sequence;
  std::int64_t first_head, heads;
  std::int64_t first_split, splits;  // of kSplitKeys keys
  // Where several items share a sequence's splits: the partial result of its first head and split (in units
  // of partials), and the counter of items that are done. -1: the item has all splits.
  std::int64_t first_partial, counter;
  std::int64_t sharers;                 // items that count on the counter
  std::int64_t begin_split, end_split;  // of the sequence
  double cost;
};

// problem.h says what the fields of a sequence mean; here they are resolved for the kernel.
struct KernelSequence {
  std::int64_t batch, first_query, queries, first_key, keys, range_begin, range_end, diagonal;
  const std::int32_t* blocks;  // the pages of its keys; null: key and value are not paged
};

struct KernelArgs {
  Operand query, key, value, out;
  Operand lse;         // data null: not wanted; column unused
  Operand mask;        // data null: none
  Operand slopes;      // ALiBi, f32 [batch, head]
  const float* sinks;  // [heads], null: none
  const KernelSequence* sequences;
  const Task* tasks;         // by falling cost
  std::int64_t tasks_count;  // without kv_heads: task t of kv head h is item t * kv_heads + h
  std::int64_t* next_item;   // shared counter, zero at the start

  std::int64_t page_size;          // keys of a page; 0: not paged, `batch` of key and value counts sequences
  Operand key_scale, value_scale;  // [page, kv_head, row], f32; data null: elements are not codes

  std::int64_t kv_heads, group, dim, dim_v;
  int key_block;   // keys per block, a multiple of the unit's key rows
  int max_groups;  // lane groups of the largest task
  bool causal;
  std::int64_t window_left, window_right;  // -1: unlimited
  float scale;                             // softmax scale, natural
  float softcap;                           // 0: none
  float dropout_scale;                     // 1 / (1 - p)
  std::uint32_t dropout_threshold;         // 0: no dropout
  std::uint32_t dropout_key[2], dropout_counter;

  // Decode. A partial result is that of one kv head and split: [rows][partial_row_floats], rows of the group
  // times the sequence's queries.
  const DecodeItem* decode_items;
  std::int64_t decode_count;
  std::int64_t* next_decode;  // shared counter, zero at the start
  float* partials;
  std::int64_t* partials_done;             // the items' counters, zero at the start
  std::int64_t decode_rows, decode_heads;  // of the largest item

  char* scratch;  // 64-byte aligned, scratch_bytes for each worker
  std::size_t scratch_bytes;
};

}  // namespace tileformer::attention
