// Which sequences decode, and how their keys are shared out.
#pragma once

#include <cstdint>
#include <vector>

#include "ops/attention/kernel_args.h"
#include "ops/attention/problem.h"
#include "ops/attention/units.h"

namespace tileformer::attention {

// Few queries over pages, and nothing that only tiles of queries know (masks, dropout). Depends on the
// sequence alone.
bool decodes(const AttentionArgs& args, const Problem& problem, const Sequence& s);

// The items of all sequences that decode, by falling cost.
struct DecodeWork {
  std::vector<DecodeItem> items;
  std::int64_t partials = 0;  // partial results
  std::int64_t counters = 0;
  std::int64_t rows = 0, heads = 0;  // of the largest item
  double keys = 0;                   // times kv heads and rows
  std::int64_t sequences = 0;
};
DecodeWork decode_work(const AttentionArgs& args, const Problem& problem, int threads);

// Memory that the workers share: partial results and counters.
struct DecodeMemory {
  std::size_t partials, counters;  // bytes
};
DecodeMemory decode_memory(const DecodeWork& work, std::int64_t row_floats);

}  // namespace tileformer::attention
