// The cases that show whether excluded positions have an influence.
#pragma once

#include <vector>

#include "ops/attention/case_table.h"

namespace tileformer::test {

// Cases in which something is excluded or the scores pass through arithmetic that could swallow a NaN.
inline std::vector<attention::AttentionCase> cases_with_exclusions(
    const std::vector<attention::AttentionCase>& cases = attention::attention_cases()) {
  std::vector<attention::AttentionCase> chosen;
  for (const attention::AttentionCase& c : cases) {
    // Shared memory poisons every head at once; a NaN that dropout drops is neither seen nor unseen.
    if (c.layout == attention::Layout::expanded_kv || c.dropout_p > 0 || c.heads == 0) continue;
    const bool excludes = c.causal != Causal::none || c.window_left >= 0 || c.window_right >= 0 ||
                          c.key_range || c.mask.kind != attention::Mask::Kind::none || c.packed() ||
                          c.paged() || c.softcap > 0 || c.sinks;
    if (excludes && c.seq_q * c.seq_k < 200 * 200) chosen.push_back(c);
  }
  return chosen;
}

}  // namespace tileformer::test
