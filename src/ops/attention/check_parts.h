// The parts of check(), one file per kind of argument; see base/check_view.h.
#pragma once

#include <cstdint>
#include <string>

#include "base/check_view.h"
#include "base/describe.h"
#include "ops/attention/problem.h"
#include "tileformer/status.h"
#include "tileformer/tensor_view.h"

namespace tileformer::attention {

// check_tensors.cpp: query, key, value, out, lse. Fills the sizes of the problem.
Status check_tensors(const AttentionArgs& args, Problem* problem);

// The longest sequence: what the mask must cover.
struct Longest {
  std::int64_t queries = 0, keys = 0;
};

// check_sequences.cpp: cu_seqlens, sequence lengths, key_range, query_offset. Fills sequences and packed.
Status check_sequences(const AttentionArgs& args, Problem* problem, Longest* longest);

// check_pages.cpp: block_table, key_lengths, key_scale, value_scale. Fills paged, page_size and
// longest->keys.
Status check_pages(const AttentionArgs& args, Problem* problem, Longest* longest);

// check_bias.cpp: attn_mask, alibi_slopes, sinks.
Status check_bias(const AttentionArgs& args, const Problem& problem, const Longest& longest);

}  // namespace tileformer::attention
