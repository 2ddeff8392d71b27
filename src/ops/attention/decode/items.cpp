#include "ops/attention/decode/items.h"

#include <algorithm>

#include "ops/attention/decode/splits.h"

namespace tileformer::attention {
namespace {

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

// Items per thread, so that the last ones to finish do not leave the others waiting long.
constexpr double kItemsPerThread = 4;
// Keys times kv heads below which an item is not worth its start.
constexpr double kMinItemKeys = 512;

// Keys that any query of the sequence sees by position.
KeyRange visible_to_all(const AttentionArgs& args, const Sequence& s) {
  const KeyRange first = key_range(args, s, 0), last = key_range(args, s, s.queries - 1);
  return {std::max<std::int64_t>(std::min(first.begin, last.begin), 0), std::max(first.end, last.end)};
}

}  // namespace

// Without pages a call may go on to the backward, which repeats the arithmetic of the tiles: beside an lse of
// differently rounded scores its probabilities would not add up to one.
bool decodes(const AttentionArgs& args, const Problem& problem, const Sequence& s) {
  return problem.paged() && s.queries >= 1 && s.queries <= kDecodeQueries &&
         s.queries * problem.group <= kDecodeRows && !args.attn_mask && args.dropout_p == 0 &&
         problem.dtype != DType::f64;
}

DecodeWork decode_work(const AttentionArgs& args, const Problem& problem, int threads) {
  struct Share {
    std::int64_t sequence;
    KeyRange keys;
  };
  DecodeWork work;
  std::vector<Share> shares;
  double total = 0;
  for (std::int64_t n = 0; n < problem.sequences; ++n) {
    const Sequence s = sequence(args, problem, n);
    if (!decodes(args, problem, s)) continue;
    const KeyRange keys = visible_to_all(args, s);
    const double seen = double(std::max<std::int64_t>(keys.end - keys.begin, 0)) * double(problem.kv_heads);
    shares.push_back({n, keys});
    total += seen;
    work.keys += seen * double(s.queries * problem.group);
    work.rows = std::max(work.rows, s.queries * problem.group);
  }
  work.sequences = std::int64_t(shares.size());
  if (problem.kv_heads == 0) return work;
  const double target = threads > 1 ? std::max(total / (kItemsPerThread * threads), kMinItemKeys) : total;
  for (const Share& share : shares) {
    const KeyRange& keys = share.keys;
    const std::int64_t begin = keys.begin < keys.end ? keys.begin / kSplitKeys : 0,
                       end = keys.begin < keys.end ? ceil_div(keys.end, kSplitKeys) : 0, splits = end - begin;
    const double cost = double(std::max<std::int64_t>(keys.end - keys.begin, 0)) * double(problem.kv_heads);
    const std::int64_t parts = std::max<std::int64_t>(std::int64_t(target > 0 ? cost / target + 0.5 : 1), 1);
    // Keys are cut first: the heads of a page are neighbours in memory.
    const std::int64_t runs = std::clamp<std::int64_t>(parts, 1, std::max<std::int64_t>(splits, 1));
    const std::int64_t head_parts = std::clamp<std::int64_t>(ceil_div(parts, runs), 1, problem.kv_heads);
    const std::int64_t heads_each = ceil_div(problem.kv_heads, head_parts);
    for (std::int64_t h = 0; h < problem.kv_heads; h += heads_each) {
      const std::int64_t heads = std::min(heads_each, problem.kv_heads - h);
      for (std::int64_t r = 0; r < runs; ++r) {
        const std::int64_t first = begin + splits * r / runs, last = begin + splits * (r + 1) / runs;
        work.items.push_back({share.sequence, h, heads, first, last - first,
                              runs > 1 ? work.partials + h * splits : -1, runs > 1 ? work.counters : -1, runs,
                              begin, end, double(last - first) * double(heads)});
      }
      work.heads = std::max(work.heads, heads);
      if (runs > 1) ++work.counters;
    }
    if (runs > 1) work.partials += problem.kv_heads * splits;
  }
  std::stable_sort(work.items.begin(), work.items.end(),
                   [](const DecodeItem& a, const DecodeItem& b) { return a.cost > b.cost; });
  return work;
}

DecodeMemory decode_memory(const DecodeWork& work, std::int64_t row_floats) {
  const auto round = [](std::size_t n) { return (n + 63) / 64 * 64; };
  return {round(sizeof(float) * std::size_t(work.partials * work.rows * row_floats)),
          round(sizeof(std::int64_t) * std::size_t(work.counters))};
}

}  // namespace tileformer::attention
