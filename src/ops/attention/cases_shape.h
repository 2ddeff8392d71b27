// Cases that vary sizes and memory: the edges of blocks (of lanes, rows, keys), head dims, groups, packed
// sequences, layouts, values.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "ops/attention/cases.h"

namespace tileformer::attention::case_table {

using Cases = std::vector<AttentionCase>;

inline std::string sizes(std::int64_t seq_q, std::int64_t seq_k) {
  return "_q" + std::to_string(seq_q) + "_k" + std::to_string(seq_k);
}

// Tails of lanes, rows of a score tile and key blocks, in both dimensions.
inline void add_tails(Cases& cases) {
  const std::int64_t lengths[] = {1,  2,  5,  6,   7,   15,  16,  17,  31,  32,
                                  33, 63, 65, 191, 192, 193, 239, 240, 241, 252};
  for (std::int64_t n : lengths) {
    cases.push_back({.name = "tail_queries" + sizes(n, 65), .seq_q = n, .seq_k = 65});
    cases.push_back({.name = "tail_keys" + sizes(33, n), .seq_q = 33, .seq_k = n, .dim = 32, .dim_v = 32});
    cases.push_back(
        {.name = "tail_causal" + sizes(n, n), .seq_q = n, .seq_k = n, .causal = Causal::bottom_right});
  }
  for (std::int64_t n : {500, 777}) {
    cases.push_back({.name = "long" + sizes(n, n), .seq_q = n, .seq_k = n, .causal = Causal::bottom_right});
    cases.push_back({.name = "long" + sizes(19, n), .seq_q = 19, .seq_k = n});
    cases.push_back({.name = "decode" + sizes(1, n), .heads = 8, .kv_heads = 2, .seq_q = 1, .seq_k = n});
  }
}

inline void add_dims(Cases& cases) {
  const std::int64_t dims[] = {1,  2,  3,  7,  8,   15,  16,  17,  31,  32,  33,  40,  48,
                               72, 80, 96, 97, 112, 127, 128, 129, 160, 192, 255, 256, 320};
  for (std::int64_t d : dims) {
    cases.push_back({.name = "dim" + std::to_string(d), .seq_q = 37, .seq_k = 83, .dim = d, .dim_v = d});
  }
  for (auto [d, d_v] : {std::pair{192, 128},
                        {576, 512},
                        {320, 256},
                        {64, 128},
                        {128, 40},
                        {576, 576},
                        {1, 576},
                        {576, 1},
                        {33, 65},
                        {511, 513}}) {
    cases.push_back({.name = "dim" + std::to_string(d) + "_" + std::to_string(d_v),
                     .heads = 2,
                     .seq_q = 35,
                     .seq_k = 50,
                     .dim = d,
                     .dim_v = d_v,
                     .causal = Causal::bottom_right});
  }
}

inline void add_groups(Cases& cases) {
  for (std::int64_t group : {1, 2, 3, 4, 7, 8, 32}) {
    for (std::int64_t seq_q : {1, 3, 34}) {
      cases.push_back({.name = "group" + std::to_string(group) + sizes(seq_q, 70),
                       .batch = 2,
                       .heads = 2 * group,
                       .kv_heads = 2,
                       .seq_q = seq_q,
                       .seq_k = 70,
                       .dim = 32,
                       .dim_v = 32,
                       .causal = Causal::bottom_right});
    }
  }
  cases.push_back({.name = "mqa_chunk",
                   .heads = 9,
                   .kv_heads = 1,
                   .seq_q = 20,
                   .seq_k = 250,
                   .dim = 40,
                   .dim_v = 40,
                   .causal = Causal::bottom_right});
}

inline void add_packed(Cases& cases) {
  const auto add = [&](std::string name, std::vector<std::int64_t> q, std::vector<std::int64_t> k,
                       auto&& change) {
    AttentionCase c{.name = "packed_" + std::move(name),
                    .heads = 4,
                    .kv_heads = 2,
                    .dim = 32,
                    .dim_v = 32,
                    .causal = Causal::bottom_right,
                    .query_lengths = std::move(q),
                    .key_lengths = std::move(k)};
    change(c);
    cases.push_back(std::move(c));
  };
  const auto nothing = [](AttentionCase&) {};
  add("self", {17, 1, 64, 33}, {17, 1, 64, 33}, nothing);
  add("bshd", {17, 1, 64, 33}, {17, 1, 64, 33}, [](AttentionCase& c) { c.layout = Layout::bshd; });
  add("decode", {1, 1, 1, 1, 1}, {70, 1, 33, 129, 16}, nothing);
  add("mixed", {1, 40, 7}, {90, 40, 31}, nothing);
  add("empty_sequences", {0, 20, 0, 5, 0}, {3, 20, 0, 0, 9}, nothing);
  add("all_empty", {0, 0}, {0, 0}, nothing);
  add("full", {5, 50}, {30, 10}, [](AttentionCase& c) { c.causal = Causal::none; });
  add("top_left", {20, 50}, {60, 10}, [](AttentionCase& c) { c.causal = Causal::top_left; });
  add("window", {70, 3, 41}, {70, 50, 41}, [](AttentionCase& c) { c.window_left = 9; });
  add("mask", {20, 3, 31}, {25, 50, 31},
      [](AttentionCase& c) { c.mask = {.kind = Mask::Kind::boolean, .batch = true, .heads = true}; });
  add("bias", {20, 3, 31}, {25, 50, 31},
      [](AttentionCase& c) { c.mask = {.kind = Mask::Kind::f32, .batch = true}; });
  add("alibi", {20, 0, 31}, {25, 50, 31},
      [](AttentionCase& c) { c.alibi = c.alibi_per_sequence = c.sinks = true; });
  add("range", {20, 3, 31}, {25, 50, 31}, [](AttentionCase& c) { c.key_range = c.query_offset = true; });
  add("dropout", {20, 3, 31}, {25, 50, 31}, [](AttentionCase& c) { c.dropout_p = 0.2f; });
}

// Many queries and keys: what the backward adds up over several tasks and blocks.
inline void add_chunks(Cases& cases) {
  const auto add = [&](std::string name, std::int64_t seq_q, std::int64_t seq_k, auto&& change) {
    AttentionCase c{.name = "chunks_" + std::move(name),
                    .heads = 2,
                    .kv_heads = 2,
                    .seq_q = seq_q,
                    .seq_k = seq_k,
                    .dim = 16,
                    .dim_v = 16};
    change(c);
    cases.push_back(std::move(c));
  };
  add("group", 150, 530, [](AttentionCase& c) { c.heads = 8, c.dim_v = 24; });
  add("window", 530, 530, [](AttentionCase& c) {
    c.heads = c.kv_heads = 1, c.causal = Causal::bottom_right, c.window_left = 60;
  });
  add("more_queries", 700, 300, [](AttentionCase& c) { c.kv_heads = 1, c.causal = Causal::bottom_right; });
  add("top_left", 550, 270, [](AttentionCase& c) { c.causal = Causal::top_left, c.layout = Layout::padded; });
  // A gradient that all tasks share, by keys and as a whole.
  add("bias_of_keys", 280, 520,
      [](AttentionCase& c) { c.batch = 2, c.mask = {.kind = Mask::Kind::f32, .queries = false}; });
  add("bias_of_queries", 280, 520, [](AttentionCase& c) {
    c.heads = 4, c.mask = {.kind = Mask::Kind::like_query, .content = Mask::Content::lowest, .keys = false};
  });
  add("packed", 0, 0, [](AttentionCase& c) {
    c.heads = 4, c.causal = Causal::bottom_right, c.softcap = 3, c.sinks = true, c.dropout_p = 0.2f;
    c.query_lengths = {200, 5, 0, 290}, c.key_lengths = {200, 300, 9, 270};
  });
}

inline void add_zero_sizes(Cases& cases) {
  cases.push_back({.name = "zero_batch", .batch = 0, .heads = 2, .kv_heads = 2, .seq_q = 5, .seq_k = 5});
  cases.push_back({.name = "zero_heads", .heads = 0, .kv_heads = 0, .seq_q = 5, .seq_k = 5});
  cases.push_back({.name = "zero_query_heads", .heads = 0, .kv_heads = 2, .seq_q = 5, .seq_k = 5});
  cases.push_back({.name = "zero_queries", .heads = 2, .seq_q = 0, .seq_k = 5});
  cases.push_back({.name = "zero_keys", .batch = 2, .heads = 2, .seq_q = 5, .seq_k = 0});
  cases.push_back({.name = "zero_keys_sinks", .heads = 2, .seq_q = 5, .seq_k = 0, .sinks = true});
  cases.push_back({.name = "zero_keys_causal",
                   .seq_q = 5,
                   .seq_k = 0,
                   .causal = Causal::bottom_right,
                   .mask = {.kind = Mask::Kind::boolean}});
}

inline void add_layouts(Cases& cases) {
  for (auto [layout, label] : {std::pair{Layout::bshd, "bshd"},
                               {Layout::padded, "padded"},
                               {Layout::reversed, "reversed"},
                               {Layout::expanded_kv, "expanded_kv"}}) {
    for (std::int64_t seq_q : {1, 50}) {
      cases.push_back({.name = std::string("layout_") + label + sizes(seq_q, 90),
                       .batch = 2,
                       .heads = 6,
                       .kv_heads = 2,
                       .seq_q = seq_q,
                       .seq_k = 90,
                       .dim = 56,
                       .dim_v = 72,
                       .causal = Causal::bottom_right,
                       .layout = layout});
    }
  }
}

inline void add_values(Cases& cases) {
  for (auto [values, label] :
       {std::pair{Values::large, "large"}, {Values::growing, "growing"}, {Values::shifted, "shifted"}}) {
    cases.push_back(
        {.name = std::string("values_") + label, .heads = 2, .seq_q = 60, .seq_k = 300, .values = values});
    cases.push_back({.name = std::string("values_") + label + "_causal",
                     .heads = 4,
                     .kv_heads = 2,
                     .seq_q = 200,
                     .seq_k = 200,
                     .causal = Causal::bottom_right,
                     .values = values});
    cases.push_back({.name = std::string("values_") + label + "_decode",
                     .heads = 7,
                     .kv_heads = 1,
                     .seq_q = 1,
                     .seq_k = 300,
                     .values = values});
  }
}

}  // namespace tileformer::attention::case_table
