// Cases whose keys lie in pages: page sizes and lengths at their edges, batches of few and many queries,
// every feature across pages, pages of another dtype than the query's.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "ops/attention/cases.h"
#include "ops/attention/cases_shape.h"

namespace tileformer::attention::case_table {

// A batch in the middle of its work: prompts, prompts that continue a cached prefix, and sequences that
// generate token by token.
inline AttentionCase mixed_pages(std::string name) {
  return {.name = "paged_" + std::move(name),
          .heads = 4,
          .kv_heads = 2,
          .dim = 32,
          .dim_v = 32,
          .causal = Causal::bottom_right,
          .query_lengths = {1, 45, 1, 3, 0, 20},
          .key_lengths = {100, 45, 33, 70, 9, 260},
          .page_size = 16};
}

inline void add_page_sizes(Cases& cases) {
  for (std::int64_t page : {16, 48, 64, 256}) {
    for (auto [layout, label] : {std::pair{Layout::bhsd, "bhsd"}, {Layout::bshd, "bshd"}}) {
      for (std::int64_t seq_q : {1, 20}) {
        const std::vector<std::int64_t> lengths{0, 1, 15, 16, 17, page - 1, page, page + 1, 290};
        cases.push_back(
            {.name = "paged_size" + std::to_string(page) + "_" + label + "_q" + std::to_string(seq_q),
             .batch = static_cast<std::int64_t>(lengths.size()),
             .heads = 4,
             .kv_heads = 2,
             .seq_q = seq_q,
             .dim = 32,
             .dim_v = 32,
             .causal = Causal::bottom_right,
             .key_lengths = lengths,
             .layout = layout,
             .page_size = page});
      }
    }
  }
  // A table of one column: pages of any size, as long as the longest sequence.
  for (auto [page, layout] : {std::pair{77, Layout::bhsd}, {1, Layout::bshd}, {251, Layout::padded}}) {
    for (std::int64_t seq_q : {2, 40}) {
      cases.push_back({.name = "paged_whole" + std::to_string(page) + "_q" + std::to_string(seq_q),
                       .batch = 4,
                       .heads = 2,
                       .kv_heads = 2,
                       .seq_q = seq_q,
                       .dim = 24,
                       .dim_v = 40,
                       .causal = Causal::bottom_right,
                       .key_lengths = {page, 0, page / 2, page},
                       .layout = layout,
                       .page_size = page});
    }
  }
}

inline void add_page_batches(Cases& cases) {
  const auto add = [&](std::string name, std::vector<std::int64_t> q, std::vector<std::int64_t> k,
                       auto&& change) {
    AttentionCase c = mixed_pages(std::move(name));
    c.query_lengths = std::move(q);
    c.key_lengths = std::move(k);
    change(c);
    cases.push_back(std::move(c));
  };
  const auto nothing = [](AttentionCase&) {};
  add("mixed", {1, 45, 1, 3, 0, 20}, {100, 45, 33, 70, 9, 260}, nothing);
  add("decode", {1, 1, 1, 1, 1}, {70, 1, 0, 129, 16}, nothing);
  add("decode_long", {1, 1}, {777, 500}, [](AttentionCase& c) { c.heads = 16, c.page_size = 64; });
  add("verify", {4, 4, 4, 5}, {70, 4, 3, 129}, nothing);
  add("chunk", {64, 40, 33}, {570, 300, 33}, [](AttentionCase& c) { c.page_size = 48; });
  add("fresh", {64, 17, 250}, {64, 17, 250}, [](AttentionCase& c) { c.page_size = 256; });
  add("more_queries", {64, 17}, {20, 3}, nothing);
  for (std::int64_t heads : {1, 7, 8, 32}) {
    add("group" + std::to_string(heads), {1, 40, 5}, {70, 90, 33},
        [&](AttentionCase& c) { c.heads = heads, c.kv_heads = 1, c.layout = Layout::bshd; });
  }
}

inline void add_page_features(Cases& cases) {
  const auto add = [&](std::string name, auto&& change) {
    AttentionCase c = mixed_pages(std::move(name));
    change(c);
    cases.push_back(std::move(c));
  };
  using Kind = Mask::Kind;
  add("full", [](AttentionCase& c) { c.causal = Causal::none; });
  add("top_left", [](AttentionCase& c) { c.causal = Causal::top_left; });
  add("window", [](AttentionCase& c) { c.window_left = 20; });
  add("window_both", [](AttentionCase& c) {
    c.causal = Causal::none, c.window_left = 17, c.window_right = 5, c.page_size = 48;
  });
  add("softcap", [](AttentionCase& c) { c.softcap = 2; });
  add("alibi", [](AttentionCase& c) { c.alibi = true; });
  add("alibi_per_sequence", [](AttentionCase& c) { c.alibi = c.alibi_per_sequence = true; });
  add("sinks", [](AttentionCase& c) { c.sinks = true; });
  add("mask", [](AttentionCase& c) { c.mask = {.kind = Kind::boolean, .batch = true, .heads = true}; });
  add("mask_blocks", [](AttentionCase& c) {
    c.mask = {.kind = Kind::boolean, .content = Mask::Content::blocks}, c.causal = Causal::none;
  });
  add("mask_of_keys",
      [](AttentionCase& c) { c.mask = {.kind = Kind::f32, .batch = true, .queries = false}; });
  add("bias", [](AttentionCase& c) { c.mask = {.kind = Kind::like_query, .batch = true}; });
  add("range", [](AttentionCase& c) { c.key_range = true; });
  add("offset", [](AttentionCase& c) { c.key_range = c.query_offset = true; });
  add("no_lse", [](AttentionCase& c) { c.lse = false; });
  add("dropout", [](AttentionCase& c) { c.dropout_p = 0.3f; });
  add("scale_negative", [](AttentionCase& c) { c.scale = -0.2f; });
  add("padded", [](AttentionCase& c) { c.layout = Layout::padded; });
  add("reversed", [](AttentionCase& c) { c.layout = Layout::reversed; });
  add("expanded", [](AttentionCase& c) { c.layout = Layout::expanded_kv; });
  add("large", [](AttentionCase& c) { c.values = Values::large; });
  add("growing", [](AttentionCase& c) { c.values = Values::growing; });
  add("everything", [](AttentionCase& c) {
    c.window_left = 60, c.softcap = 5, c.alibi = c.sinks = c.key_range = true, c.dropout_p = 0.1f;
    c.mask = {.kind = Kind::f32, .batch = true, .heads = true}, c.layout = Layout::bshd;
    c.key_dtype = DType::i8, c.value_dtype = DType::f8_e4m3;
  });
}

inline void add_page_dims(Cases& cases) {
  for (auto [dim, dim_v] :
       {std::pair{64, 40}, {80, 96}, {128, 128}, {1, 576}, {192, 128}, {15, 7}, {256, 33}}) {
    AttentionCase c = mixed_pages("dim" + std::to_string(dim) + "_" + std::to_string(dim_v));
    c.dim = dim, c.dim_v = dim_v;
    c.query_lengths = {1, 35, 3}, c.key_lengths = {50, 35, 70};
    cases.push_back(std::move(c));
  }
  for (const char* label : {"mla", "mla_i8"}) {
    AttentionCase c = mixed_pages(label);
    c.heads = 16, c.kv_heads = 1, c.dim = 576, c.dim_v = 512, c.value_in_key = true;
    c.query_lengths = {1, 5, 1}, c.key_lengths = {130, 21, 33}, c.page_size = 64;
    if (c.name == "paged_mla_i8") c.key_dtype = c.value_dtype = DType::i8;
    cases.push_back(std::move(c));
  }
}

inline void add_page_dtypes(Cases& cases) {
  const auto short_name = [](DType dtype) {
    return dtype == DType::f8_e4m3 ? "e4m3" : dtype == DType::f8_e5m2 ? "e5m2" : name_of(dtype);
  };
  const std::pair<DType, DType> dtypes[] = {
      {DType::f32, DType::f32},    {DType::f16, DType::f16},         {DType::bf16, DType::bf16},
      {DType::i8, DType::i8},      {DType::f8_e4m3, DType::f8_e4m3}, {DType::f8_e5m2, DType::f8_e5m2},
      {DType::i8, DType::f16},     {DType::bf16, DType::i8},         {DType::f8_e4m3, DType::f8_e5m2},
      {DType::f32, DType::f8_e4m3}};
  for (const auto& [key, value] : dtypes) {
    AttentionCase c = mixed_pages(std::string("dtype_") + short_name(key) + "_" + short_name(value));
    c.key_dtype = key, c.value_dtype = value;
    c.query_lengths = {1, 40, 1, 3}, c.key_lengths = {100, 40, 33, 70};
    c.dim = 40, c.dim_v = 56;
    c.layout = cases.size() % 2 != 0 ? Layout::bshd : Layout::bhsd;
    cases.push_back(std::move(c));
  }
}

inline void add_page_edges(Cases& cases) {
  AttentionCase empty = mixed_pages("empty");
  empty.query_lengths = {0, 5, 1}, empty.key_lengths = {0, 0, 0}, empty.sinks = true;
  cases.push_back(empty);
  cases.push_back({.name = "paged_zero_batch", .batch = 0, .heads = 2, .seq_q = 5, .page_size = 16});
  cases.push_back({.name = "paged_zero_queries",
                   .batch = 2,
                   .heads = 2,
                   .seq_q = 0,
                   .key_lengths = {5, 20},
                   .page_size = 16});
}

}  // namespace tileformer::attention::case_table
