// The attention problems that are always tested: each family varies one feature, the last combines them. Kept
// small, because every case runs on every ISA in every dtype.
#pragma once

#include <vector>

#include "ops/attention/cases_decode.h"
#include "ops/attention/cases_feature.h"
#include "ops/attention/cases_paged.h"
#include "ops/attention/cases_shape.h"

namespace tileformer::attention {

inline std::vector<AttentionCase> attention_cases() {
  using namespace case_table;
  std::vector<AttentionCase> cases;
  for (auto add :
       {add_tails, add_dims, add_groups, add_causal_and_windows, add_masks, add_biases, add_packed,
        add_chunks, add_few_queries, add_zero_sizes, add_ranges, add_layouts, add_values, add_combinations}) {
    add(cases);
  }
  for (AttentionCase& c : cases) c.set_totals();
  return cases;
}

// Keys in pages: forward only.
inline std::vector<AttentionCase> paged_attention_cases() {
  using namespace case_table;
  std::vector<AttentionCase> cases;
  for (auto add : {add_page_sizes, add_page_batches, add_page_features, add_page_dims, add_page_dtypes,
                   add_page_edges, add_decode}) {
    add(cases);
  }
  for (AttentionCase& c : cases) c.set_totals();
  return cases;
}

}  // namespace tileformer::attention
