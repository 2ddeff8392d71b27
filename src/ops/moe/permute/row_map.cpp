#include "ops/moe/permute/row_map.h"

#include <algorithm>
#include <string>

#include "base/check_view.h"

namespace tileformer::permute_op {
namespace {

// begin of one entry more than TokenRows has: rows of no token count as those of a token beyond the last.
std::int64_t begin_entries(std::int64_t tokens) { return tokens + 2; }

Status wrong_row(std::int64_t row, std::int64_t pair, std::int64_t pairs, bool seen) {
  const std::string given =
      std::to_string(pair) + (seen ? " once more" : "") + " in row " + std::to_string(row);
  if (seen) return wrong("source", given, "no pair twice");
  if (pairs == 0) return wrong("source", given, "-1, as there is no pair");
  return wrong("source", given, "0 to " + std::to_string(pairs - 1) + ", or -1 for no pair");
}

}  // namespace

std::size_t row_map_bytes(std::int64_t rows, std::int64_t tokens, std::int64_t k) {
  return static_cast<std::size_t>(begin_entries(tokens) + rows) * sizeof(std::int64_t) +
         static_cast<std::size_t>(tokens * k);
}

Status map_rows(const TensorView& source, std::int64_t tokens, std::int64_t k, void* scratch,
                TokenRows* map) {
  const std::int64_t rows = source.shape[0], stride = source.stride[0], pairs = tokens * k;
  const auto* pair_of = static_cast<const std::int64_t*>(source.data);
  auto* const begin = static_cast<std::int64_t*>(scratch);
  std::int64_t* const row = begin + begin_entries(tokens);
  auto* const seen = reinterpret_cast<bool*>(row + rows);
  std::fill(begin, row, 0);
  std::fill(seen, seen + pairs, false);

  // Counts stand one entry late, as moe::dispatch explains.
  std::int64_t* const next = begin + 1;
  const auto token_of = [&](std::int64_t r) {
    const std::int64_t pair = pair_of[r * stride];
    return pair < 0 ? tokens : pair / k;
  };
  for (std::int64_t r = 0; r < rows; ++r) {
    const std::int64_t pair = pair_of[r * stride];
    if (pair < -1 || pair >= pairs) return wrong_row(r, pair, pairs, false);
    if (pair >= 0 && seen[pair]) return wrong_row(r, pair, pairs, true);
    if (pair >= 0) seen[pair] = true;
    ++next[token_of(r)];
  }
  std::int64_t start = 0;
  for (std::int64_t t = 0; t <= tokens; ++t) {
    const std::int64_t count = next[t];
    next[t] = start;
    start += count;
  }
  for (std::int64_t r = 0; r < rows; ++r) row[next[token_of(r)]++] = r;
  begin[0] = 0;
  *map = {begin, row};
  return Status::ok();
}

}  // namespace tileformer::permute_op
