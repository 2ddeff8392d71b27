// The sizes of a checked call, and where each expert's rows are.
#pragma once

#include <cstdint>
#include <vector>

#include "tileformer/grouped_matmul.h"

namespace tileformer::moe::grouped {

struct Problem {
  std::int64_t rows, experts, out, in;
};

// Every argument but the values in counts, once. All later code trusts it.
Status check(const GroupedMatmulArgs& args, Problem* problem);
Status check(const GroupedMatmulBackwardArgs& args, Problem* problem);

// Reads counts: expert e has the rows from offsets[e] to before offsets[e + 1].
Status read_offsets(const TensorView& counts, const Problem& problem, std::vector<std::int64_t>* offsets);

}  // namespace tileformer::moe::grouped
