// Few queries to more keys than a split has: what decode joins, and what it leaves to tiles of queries.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "ops/attention/cases.h"
#include "ops/attention/cases_shape.h"

namespace tileformer::attention::case_table {

// Splits are of 512 keys: lengths below, at and above their multiples in one batch.
inline void add_decode(Cases& cases) {
  auto add = [&](const char* name, std::int64_t queries, auto change) {
    AttentionCase c{.name = std::string("decode_") + name, .batch = 4, .heads = 4, .kv_heads = 1};
    c.seq_q = queries;
    c.page_size = 64;
    c.key_lengths = {1300, 512, 513, 3};
    c.causal = Causal::bottom_right;
    change(c);
    cases.push_back(std::move(c));
  };
  add("group_of_4", 1, [](AttentionCase&) {});
  add("group_of_1", 1, [](AttentionCase& c) { c.heads = c.kv_heads = 2; });
  add("group_of_3", 1, [](AttentionCase& c) { c.heads = 6, c.kv_heads = 2, c.dim = c.dim_v = 128; });
  add("group_of_7", 1, [](AttentionCase& c) { c.heads = 14, c.kv_heads = 2; });
  add("group_of_16", 1, [](AttentionCase& c) { c.heads = 16; });
  add("group_of_128", 1, [](AttentionCase& c) { c.heads = 128; });
  add("queries_3", 3, [](AttentionCase& c) { c.heads = 2; });
  add("queries_16", 16, [](AttentionCase& c) { c.heads = 2; });
  add("small_pages", 2, [](AttentionCase& c) { c.page_size = 16; });
  add("odd_dims", 1, [](AttentionCase& c) { c.dim = 72, c.dim_v = 40; });
  add("window", 2, [](AttentionCase& c) { c.window_left = 700, c.sinks = true; });
  add("narrow_window", 5, [](AttentionCase& c) { c.window_left = 9; });
  add("padding_on_the_left", 2, [](AttentionCase& c) { c.key_range = true; });
  add("alibi_softcap_sinks", 4, [](AttentionCase& c) { c.alibi = c.sinks = true, c.softcap = 5; });
  add("growing", 1, [](AttentionCase& c) { c.values = Values::growing; });
  add("more_queries_than_keys", 7, [](AttentionCase& c) { c.key_lengths = {3, 600, 0, 7}; });
  add("beside_prefill", 0, [](AttentionCase& c) {
    c.query_lengths = {1, 40, 2, 0, 17}, c.key_lengths = {1100, 700, 600, 5, 530}, c.batch = 1;
  });
  add("hidden_by_a_mask", 2, [](AttentionCase& c) { c.mask = {.kind = Mask::Kind::boolean}; });
  add("mla", 1, [](AttentionCase& c) {
    c.heads = 16, c.dim = 576, c.dim_v = 512, c.value_in_key = true, c.key_lengths = {600, 20, 1, 64};
  });
}

// Few queries to many keys without pages, which tiles take: forward and backward.
inline void add_few_queries(Cases& cases) {
  for (std::int64_t queries : {1, 6}) {
    AttentionCase c{.name = "few_queries_" + std::to_string(queries), .batch = 2, .heads = 6, .kv_heads = 2};
    c.seq_q = queries;
    c.seq_k = 1100;
    c.causal = Causal::bottom_right;
    c.layout = Layout::bshd;
    cases.push_back(std::move(c));
  }
}

}  // namespace tileformer::attention::case_table
