// Which query sees which key, from the words of attention.h; written without the library's own key_range().
#pragma once

#include <cstdint>
#include <limits>

#include "elements.h"
#include "tileformer/attention.h"

namespace tileformer::test {

struct Span {
  std::int64_t first, count;
};

inline Span rows_of(const TensorView& cu_seqlens, std::int64_t n, std::int64_t total) {
  if (!cu_seqlens) return {0, total};
  const auto first = static_cast<std::int64_t>(get(cu_seqlens, {n}));
  return {first, static_cast<std::int64_t>(get(cu_seqlens, {n + 1})) - first};
}

inline Span queries_of(const AttentionArgs& args, std::int64_t n) {
  return rows_of(args.cu_seqlens_query, n, args.query.shape[2]);
}

inline Span keys_of(const AttentionArgs& args, std::int64_t n) {
  if (args.block_table) return {0, static_cast<std::int64_t>(get(args.key_lengths, {n}))};
  return rows_of(args.cu_seqlens_key, n, args.key.shape[2]);
}

// Where key j of a sequence stands in key and value.
inline Index place_of_key(const AttentionArgs& args, std::int64_t n, std::int64_t kv_head, std::int64_t j) {
  if (!args.block_table) return {args.cu_seqlens_key ? 0 : n, kv_head, keys_of(args, n).first + j};
  const std::int64_t page_size = args.key.shape[2];
  const auto page = static_cast<std::int64_t>(get(args.block_table, {n, j / page_size}));
  return {page, kv_head, j % page_size};
}

inline std::int64_t sequences_of(const AttentionArgs& args) {
  return args.cu_seqlens_query ? args.cu_seqlens_query.shape[0] - 1 : args.query.shape[0];
}

// The mask at (sequence, head, query, key).
inline double mask_at(const AttentionArgs& args, const Index& at) {
  Index index = at;
  for (int i = 0; i < 4; ++i) {
    if (args.attn_mask.shape[i] == 1) index[i] = 0;
  }
  return get(args.attn_mask, index);
}

inline std::int64_t diagonal_of(const AttentionArgs& args, std::int64_t n) {
  if (args.query_offset) return static_cast<std::int64_t>(get(args.query_offset, {n}));
  return args.causal == Causal::top_left ? 0 : keys_of(args, n).count - queries_of(args, n).count;
}

// at: sequence, head, query, key; positions from the start of the sequence.
inline bool sees(const AttentionArgs& args, const Index& at) {
  const auto [n, head, i, j] = at;
  const std::int64_t distance = j - (i + diagonal_of(args, n));  // > 0: the key comes later
  if (j >= keys_of(args, n).count) return false;
  if (args.key_range && (j < get(args.key_range, {n, 0}) || j >= get(args.key_range, {n, 1}))) return false;
  if (args.causal != Causal::none && distance > 0) return false;
  if (args.window_left != -1 && distance < -args.window_left) return false;
  if (args.window_right != -1 && distance > args.window_right) return false;
  if (!args.attn_mask) return true;
  const double mask = mask_at(args, at);
  return args.attn_mask.dtype == DType::boolean ? mask != 0
                                                : mask != -std::numeric_limits<double>::infinity();
}

}  // namespace tileformer::test
