// Cases that vary what a query sees and how its scores are made: causal, windows, ranges, masks, biases.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "ops/attention/cases.h"
#include "ops/attention/cases_shape.h"

namespace tileformer::attention::case_table {

inline void add_causal_and_windows(Cases& cases) {
  for (auto [causal, label] :
       {std::pair{Causal::top_left, "top_left"}, {Causal::bottom_right, "bottom_right"}}) {
    for (auto [seq_q, seq_k] :
         {std::pair{40, 100}, {100, 40}, {17, 250}, {250, 17}, {64, 64}, {1, 33}, {33, 1}}) {
      cases.push_back({.name = std::string(label) + sizes(seq_q, seq_k),
                       .heads = 2,
                       .seq_q = seq_q,
                       .seq_k = seq_k,
                       .causal = causal});
    }
  }
  for (auto [left, right] : {std::pair{0, 0}, {7, -1}, {-1, 7}, {16, 3}, {64, 64}, {1000, 0}, {0, 1000}}) {
    const std::string label =
        "window" + std::to_string(left) + "_" + (right < 0 ? std::string("all") : std::to_string(right));
    const std::string name = left < 0 ? "window_all_" + std::to_string(right) : label;
    for (Causal causal : {Causal::none, Causal::top_left, Causal::bottom_right}) {
      const char* suffix = causal == Causal::none       ? ""
                           : causal == Causal::top_left ? "_top_left"
                                                        : "_bottom_right";
      cases.push_back({.name = name + suffix,
                       .heads = 2,
                       .seq_q = 90,
                       .seq_k = 130,
                       .dim = 40,
                       .dim_v = 40,
                       .causal = causal,
                       .window_left = left,
                       .window_right = right});
    }
    cases.push_back({.name = name + "_more_queries",
                     .seq_q = 130,
                     .seq_k = 50,
                     .window_left = left,
                     .window_right = right});
  }
  cases.push_back(
      {.name = "window_long", .seq_q = 500, .seq_k = 500, .causal = Causal::bottom_right, .window_left = 31});
}

inline void add_ranges(Cases& cases) {
  for (std::int64_t seq_q : {1, 33, 80}) {
    const std::string at = sizes(seq_q, 80);
    cases.push_back({.name = "key_range" + at,
                     .batch = 4,
                     .heads = 2,
                     .kv_heads = 1,
                     .seq_q = seq_q,
                     .seq_k = 80,
                     .key_range = true});
    cases.push_back({.name = "key_range_causal" + at,
                     .batch = 4,
                     .heads = 2,
                     .seq_q = seq_q,
                     .seq_k = 80,
                     .causal = Causal::bottom_right,
                     .key_range = true});
    cases.push_back({.name = "query_offset" + at,
                     .batch = 5,
                     .heads = 2,
                     .seq_q = seq_q,
                     .seq_k = 80,
                     .causal = Causal::bottom_right,
                     .query_offset = true});
    cases.push_back({.name = "query_offset_window" + at,
                     .batch = 5,
                     .heads = 2,
                     .seq_q = seq_q,
                     .seq_k = 80,
                     .causal = Causal::top_left,
                     .window_left = 20,
                     .alibi = true,
                     .key_range = true,
                     .query_offset = true});
  }
}

inline void add_masks(Cases& cases) {
  using Kind = Mask::Kind;
  using Order = Mask::Order;
  using Content = Mask::Content;
  for (auto [kind, label] :
       {std::pair{Kind::boolean, "bool"}, {Kind::like_query, "float"}, {Kind::f32, "f32"}}) {
    for (int bits = 0; bits < 16; ++bits) {
      const Mask mask{.kind = kind,
                      .batch = (bits & 8) != 0,
                      .heads = (bits & 4) != 0,
                      .queries = (bits & 2) != 0,
                      .keys = (bits & 1) != 0};
      const std::string name = std::string("mask_") + label + "_" + (mask.batch ? "b" : "1") +
                               (mask.heads ? "h" : "1") + (mask.queries ? "q" : "1") +
                               (mask.keys ? "k" : "1");
      cases.push_back({.name = name,
                       .batch = 2,
                       .heads = 4,
                       .kv_heads = 2,
                       .seq_q = 21,
                       .seq_k = 67,
                       .dim = 24,
                       .dim_v = 24,
                       .mask = mask});
    }
    for (auto [order, order_label] : {std::pair{Order::transposed, "transposed"},
                                      {Order::sparse, "sparse"},
                                      {Order::expanded, "expanded"}}) {
      cases.push_back({.name = std::string("mask_") + label + "_" + order_label,
                       .batch = 2,
                       .heads = 2,
                       .seq_q = 35,
                       .seq_k = 100,
                       .mask = {.kind = kind, .order = order, .batch = true}});
    }
    for (auto [content, content_label] :
         {std::pair{Content::blocks, "blocks"}, {Content::hidden, "hidden"}, {Content::lowest, "lowest"}}) {
      cases.push_back({.name = std::string("mask_") + label + "_" + content_label,
                       .heads = 3,
                       .seq_q = 50,
                       .seq_k = 330,
                       .mask = {.kind = kind, .content = content, .heads = true}});
    }
    cases.push_back({.name = std::string("mask_") + label + "_causal",
                     .batch = 2,
                     .heads = 6,
                     .kv_heads = 2,
                     .seq_q = 40,
                     .seq_k = 75,
                     .causal = Causal::bottom_right,
                     .mask = {.kind = kind, .batch = true}});
    cases.push_back({.name = std::string("mask_") + label + "_decode",
                     .batch = 3,
                     .heads = 8,
                     .kv_heads = 2,
                     .seq_q = 1,
                     .seq_k = 99,
                     .mask = {.kind = kind, .batch = true, .queries = false}});
  }
  cases.push_back({.name = "mask_f64", .heads = 2, .seq_q = 20, .seq_k = 50, .mask = {.kind = Kind::f64}});
}

inline void add_biases(Cases& cases) {
  for (std::int64_t seq_q : {1, 45}) {
    const std::string at = sizes(seq_q, 75);
    const AttentionCase base{.name = "",
                             .batch = 2,
                             .heads = 6,
                             .kv_heads = 2,
                             .seq_q = seq_q,
                             .seq_k = 75,
                             .dim = 48,
                             .dim_v = 48,
                             .causal = Causal::bottom_right};
    const auto with = [&](const char* name, auto&& change) {
      AttentionCase c = base;
      c.name = name + at;
      change(c);
      cases.push_back(std::move(c));
    };
    with("alibi", [](AttentionCase& c) { c.alibi = true; });
    with("alibi_full", [](AttentionCase& c) { c.alibi = true, c.causal = Causal::none; });
    with("alibi_top_left", [](AttentionCase& c) { c.alibi = true, c.causal = Causal::top_left; });
    with("alibi_per_sequence", [](AttentionCase& c) { c.alibi = c.alibi_per_sequence = true; });
    with("softcap", [](AttentionCase& c) { c.softcap = 2; });
    with("softcap_large", [](AttentionCase& c) { c.softcap = 15, c.values = Values::large; });
    with("sinks", [](AttentionCase& c) { c.sinks = true; });
    with("sinks_hidden", [](AttentionCase& c) {
      c.sinks = true, c.mask = {.kind = Mask::Kind::boolean, .content = Mask::Content::hidden};
    });
    with("scale", [](AttentionCase& c) { c.scale = 0.37f; });
    with("scale_negative", [](AttentionCase& c) { c.scale = -0.2f; });
    with("scale_zero", [](AttentionCase& c) { c.scale = 0.f; });
    with("no_lse", [](AttentionCase& c) { c.lse = false; });
    with("dropout", [](AttentionCase& c) { c.dropout_p = 0.3f; });
    with("dropout_full", [](AttentionCase& c) { c.dropout_p = 0.75f, c.causal = Causal::none; });
  }
}

inline void add_combinations(Cases& cases) {
  cases.push_back(
      {.name = "everything",
       .batch = 2,
       .heads = 6,
       .kv_heads = 2,
       .seq_q = 45,
       .seq_k = 110,
       .dim = 72,
       .dim_v = 56,
       .causal = Causal::bottom_right,
       .window_left = 60,
       .mask = {.kind = Mask::Kind::f32, .order = Mask::Order::sparse, .batch = true, .heads = true},
       .alibi = true,
       .softcap = 5,
       .sinks = true,
       .key_range = true,
       .layout = Layout::padded,
       .dropout_p = 0.1f});
  cases.push_back({.name = "everything_packed",
                   .heads = 8,
                   .kv_heads = 2,
                   .dim = 40,
                   .dim_v = 40,
                   .causal = Causal::top_left,
                   .window_left = 25,
                   .window_right = 4,
                   .mask = {.kind = Mask::Kind::boolean, .order = Mask::Order::transposed, .batch = true},
                   .alibi = true,
                   .alibi_per_sequence = true,
                   .softcap = 3,
                   .sinks = true,
                   .query_lengths = {30, 0, 1, 70},
                   .key_lengths = {44, 6, 50, 20},
                   .key_range = true,
                   .query_offset = true,
                   .layout = Layout::bshd,
                   .dropout_p = 0.1f});
  cases.push_back({.name = "gemma",
                   .heads = 8,
                   .kv_heads = 4,
                   .seq_q = 70,
                   .seq_k = 70,
                   .dim = 256,
                   .dim_v = 256,
                   .causal = Causal::bottom_right,
                   .window_left = 32,
                   .softcap = 50,
                   .layout = Layout::bshd});
  cases.push_back({.name = "gpt_oss",
                   .batch = 2,
                   .heads = 16,
                   .kv_heads = 2,
                   .seq_q = 40,
                   .seq_k = 40,
                   .causal = Causal::bottom_right,
                   .window_left = 16,
                   .sinks = true,
                   .key_range = true,
                   .layout = Layout::bshd});
  cases.push_back({.name = "mla_decode", .heads = 16, .seq_q = 1, .seq_k = 130, .dim = 576, .dim_v = 512});
}

}  // namespace tileformer::attention::case_table
