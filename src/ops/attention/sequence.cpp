// Where a sequence stands in the views, and which keys a query sees by position.
#include <algorithm>

#include "ops/attention/index_at.h"
#include "ops/attention/problem.h"

namespace tileformer::attention {

Sequence sequence(const AttentionArgs& args, const Problem& problem, std::int64_t index) {
  Sequence s{};
  if (problem.packed) {
    s.first_query = index_at(args.cu_seqlens_query, index);
    s.queries = index_at(args.cu_seqlens_query, index + 1) - s.first_query;
    if (!problem.paged()) {
      s.first_key = index_at(args.cu_seqlens_key, index);
      s.keys = index_at(args.cu_seqlens_key, index + 1) - s.first_key;
    }
  } else {
    s.batch = index;
    s.queries = problem.total_queries;
    s.keys = problem.total_keys;
  }
  if (problem.paged()) s.keys = index_at(args.key_lengths, index);
  s.range_begin = args.key_range ? index_at(args.key_range, index, 0) : 0;
  s.range_end = args.key_range ? index_at(args.key_range, index, 1) : s.keys;
  s.diagonal = args.query_offset                 ? index_at(args.query_offset, index)
               : args.causal == Causal::top_left ? 0
                                                 : s.keys - s.queries;
  return s;
}

KeyRange key_range(const AttentionArgs& args, const Sequence& s, std::int64_t query) {
  // Beyond this a window excludes nothing; clamped so that position + window cannot overflow.
  constexpr std::int64_t kWide = std::int64_t{1} << 40;
  const std::int64_t opposite = query + s.diagonal;
  KeyRange range{s.range_begin, s.range_end};
  if (args.window_left >= 0)
    range.begin = std::max(range.begin, opposite - std::min(args.window_left, kWide));
  if (args.window_right >= 0)
    range.end = std::min(range.end, opposite + std::min(args.window_right, kWide) + 1);
  if (args.causal != Causal::none) range.end = std::min(range.end, opposite + 1);
  return range;
}

}  // namespace tileformer::attention
