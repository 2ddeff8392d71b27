// The parts of check(), one file per kind of argument. Each returns the first thing that is wrong, as
// "<argument>: got <what was given>, expected <what is allowed>".
#pragma once

#include <cstdint>
#include <string>

#include "base/describe.h"
#include "ops/attention/problem.h"
#include "tileformer/status.h"
#include "tileformer/tensor_view.h"

namespace tileformer::attention {

Status wrong(const char* argument, const std::string& got, const std::string& expected);

// Rank and sizes, and that every element the strides reach has a 64-bit byte offset, memory and alignment.
Status check_view(const char* argument, const TensorView& view, int rank, const char* layout);

// check_tensors.cpp: query, key, value, out, lse. Fills the sizes of the problem.
Status check_tensors(const AttentionArgs& args, Problem* problem);

// The longest sequence: what the mask must cover.
struct Longest {
  std::int64_t queries = 0, keys = 0;
};

// Unit stride in the last dimension of a tensor of rank 4.
Status check_unit_stride(const char* argument, const TensorView& view);
// No two elements of an output at one address.
Status check_distinct(const char* argument, const TensorView& view);
// As `like`, in dtype and shape.
Status check_like(const char* argument, const TensorView& view, DType dtype, const TensorView& like,
                  const char* layout);

// check_sequences.cpp: cu_seqlens, sequence lengths, key_range, query_offset. Fills sequences and packed.
Status check_sequences(const AttentionArgs& args, Problem* problem, Longest* longest);

// check_pages.cpp: block_table, key_lengths, key_scale, value_scale. Fills paged, page_size and
// longest->keys.
Status check_pages(const AttentionArgs& args, Problem* problem, Longest* longest);

// check_bias.cpp: attn_mask, alibi_slopes, sinks.
Status check_bias(const AttentionArgs& args, const Problem& problem, const Longest& longest);

}  // namespace tileformer::attention
