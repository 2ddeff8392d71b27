#include <algorithm>

#include "ops/attention/check_parts.h"
#include "ops/attention/index_at.h"

namespace tileformer::attention {
namespace {

// Positions inside a sequence, and positions plus a block, are 32-bit in the kernels.
constexpr std::int64_t kMaxSequenceLength = (std::int64_t{1} << 31) - (std::int64_t{1} << 16) - 1;

std::string at(std::int64_t index) { return "[" + std::to_string(index) + "] = "; }

// A view of offsets [sequences + 1]: from 0, never decreasing, ending at total.
Status check_offsets(const char* argument, const TensorView& view, std::int64_t total,
                     const char* total_name) {
  if (Status s = check_view(argument, view, 1, "[sequences + 1]"); !s) return s;
  if (view.dtype != DType::i32 && view.dtype != DType::i64) {
    return wrong(argument, std::string("dtype ") + name_of(view.dtype), "int32 or int64");
  }
  const std::int64_t entries = view.shape[0];
  if (entries < 1) return wrong(argument, "no entry", "[sequences + 1] entries, the first of them 0");
  if (index_at(view, 0) != 0) return wrong(argument, at(0) + std::to_string(index_at(view, 0)), "0");
  for (std::int64_t i = 1; i < entries; ++i) {
    if (index_at(view, i) < index_at(view, i - 1)) {
      return wrong(
          argument,
          at(i) + std::to_string(index_at(view, i)) + " after " + std::to_string(index_at(view, i - 1)),
          "offsets that never decrease");
    }
  }
  if (index_at(view, entries - 1) != total) {
    return wrong(argument, at(entries - 1) + std::to_string(index_at(view, entries - 1)) + " at the end",
                 std::string(total_name) + " = " + std::to_string(total));
  }
  return Status::ok();
}

std::int64_t longest_of(const TensorView& offsets) {
  std::int64_t longest = 0;
  for (std::int64_t i = 1; i < offsets.shape[0]; ++i) {
    longest = std::max(longest, index_at(offsets, i) - index_at(offsets, i - 1));
  }
  return longest;
}

// Queries one after the other, keys in pages.
Status check_packed_queries(const AttentionArgs& args, Problem* problem) {
  const TensorView& q = args.cu_seqlens_query;
  if (args.query.shape[0] != 1) {
    return wrong("query", "batch " + std::to_string(args.query.shape[0]), "batch 1 with cu_seqlens");
  }
  if (Status s = check_offsets("cu_seqlens_query", q, problem->total_queries, "seq_q"); !s) return s;
  problem->packed = true;
  problem->sequences = q.shape[0] - 1;
  return Status::ok();
}

Status check_packed(const AttentionArgs& args, Problem* problem) {
  const TensorView &q = args.cu_seqlens_query, &k = args.cu_seqlens_key;
  if (!q) return wrong("cu_seqlens_query", "nothing", "a tensor, because cu_seqlens_key is given");
  if (!k) return wrong("cu_seqlens_key", "nothing", "a tensor, because cu_seqlens_query is given");
  if (Status s = check_packed_queries(args, problem); !s) return s;
  if (Status s = check_offsets("cu_seqlens_key", k, problem->total_keys, "seq_k"); !s) return s;
  if (q.shape[0] != k.shape[0]) {
    return wrong("cu_seqlens_key", std::to_string(k.shape[0]) + " entries",
                 std::to_string(q.shape[0]) + ", as many as cu_seqlens_query has");
  }
  return Status::ok();
}

Status check_length(const char* argument, std::int64_t length) {
  if (length <= kMaxSequenceLength) return Status::ok();
  return Status::unsupported(std::string(argument) + ": got a sequence of length " + std::to_string(length) +
                             ", expected at most " + std::to_string(kMaxSequenceLength));
}

Status check_int32(const char* argument, const TensorView& view, const std::string& expected) {
  if (view.dtype == DType::i32) return Status::ok();
  return wrong(argument, std::string("dtype ") + name_of(view.dtype), "int32 " + expected);
}

Status check_key_range(const AttentionArgs& args, const Problem& problem) {
  const TensorView& range = args.key_range;
  if (!range) return Status::ok();
  const std::string expected = "[" + std::to_string(problem.sequences) + ", 2]";
  if (Status s = check_view("key_range", range, 2, "[sequences, 2]"); !s) return s;
  if (Status s = check_int32("key_range", range, expected); !s) return s;
  if (range.shape[0] != problem.sequences || range.shape[1] != 2) {
    return wrong("key_range", "shape " + describe_shape(range),
                 expected + ", first and last + 1 key of each sequence");
  }
  for (std::int64_t i = 0; i < problem.sequences; ++i) {
    const std::int64_t keys = problem.paged() ? index_at(args.key_lengths, i)
                              : problem.packed
                                  ? index_at(args.cu_seqlens_key, i + 1) - index_at(args.cu_seqlens_key, i)
                                  : problem.total_keys;
    const std::int64_t first = index_at(range, i, 0), last = index_at(range, i, 1);
    if (first < 0 || first > last || last > keys) {
      return wrong("key_range", at(i) + "(" + std::to_string(first) + ", " + std::to_string(last) + ")",
                   "0 <= first <= second <= " + std::to_string(keys) + ", the keys of the sequence");
    }
  }
  return Status::ok();
}

Status check_query_offset(const AttentionArgs& args, const Problem& problem) {
  const TensorView& offset = args.query_offset;
  if (!offset) return Status::ok();
  const std::string expected = "[" + std::to_string(problem.sequences) + "]";
  if (Status s = check_view("query_offset", offset, 1, "[sequences]"); !s) return s;
  if (Status s = check_int32("query_offset", offset, expected); !s) return s;
  if (offset.shape[0] != problem.sequences) {
    return wrong("query_offset", "shape " + describe_shape(offset),
                 expected + ", one diagonal for each sequence");
  }
  for (std::int64_t i = 0; i < problem.sequences; ++i) {
    const std::int64_t diagonal = index_at(offset, i);
    if (diagonal < -kMaxSequenceLength || diagonal > kMaxSequenceLength) {
      return wrong("query_offset", at(i) + std::to_string(diagonal),
                   "a position of at most " + std::to_string(kMaxSequenceLength) + " in magnitude");
    }
  }
  return Status::ok();
}

}  // namespace

Status check_sequences(const AttentionArgs& args, Problem* problem, Longest* longest) {
  if (args.block_table || args.key_lengths) {
    if (args.cu_seqlens_query) {
      if (Status s = check_packed_queries(args, problem); !s) return s;
    }
    *longest = {problem->packed ? longest_of(args.cu_seqlens_query) : problem->total_queries, 0};
    if (Status s = check_pages(args, problem, longest); !s) return s;
  } else if (args.key_scale || args.value_scale) {
    return wrong(args.key_scale ? "key_scale" : "value_scale", "a tensor", "nothing without block_table");
  } else if (args.cu_seqlens_query || args.cu_seqlens_key) {
    if (Status s = check_packed(args, problem); !s) return s;
    *longest = {longest_of(args.cu_seqlens_query), longest_of(args.cu_seqlens_key)};
  } else {
    *longest = {problem->total_queries, problem->total_keys};
  }
  if (Status s = check_length("query", longest->queries); !s) return s;
  if (Status s = check_length("key", longest->keys); !s) return s;
  if (Status s = check_key_range(args, *problem); !s) return s;
  return check_query_offset(args, *problem);
}

}  // namespace tileformer::attention
