// The attention problems that are always tested: each family varies one feature, the last combines them. Kept
// small, because every case runs on every ISA in every dtype.
#pragma once

#include <cstdint>
#include <numeric>
#include <vector>

#include "ops/attention/cases_feature.h"
#include "ops/attention/cases_shape.h"

namespace tileformer::attention {

inline std::vector<AttentionCase> attention_cases() {
  using namespace case_table;
  std::vector<AttentionCase> cases;
  for (auto add : {add_tails, add_dims, add_groups, add_causal_and_windows, add_masks, add_biases, add_packed,
                   add_chunks, add_zero_sizes, add_ranges, add_layouts, add_values, add_combinations}) {
    add(cases);
  }
  for (AttentionCase& c : cases) {
    if (!c.packed()) continue;
    c.seq_q = std::accumulate(c.query_lengths.begin(), c.query_lengths.end(), std::int64_t{0});
    c.seq_k = std::accumulate(c.key_lengths.begin(), c.key_lengths.end(), std::int64_t{0});
  }
  return cases;
}

}  // namespace tileformer::attention
