// The sizes of a checked call.
#pragma once

#include <cstdint>

namespace tileformer::moe {

struct Problem {
  std::int64_t tokens, k, experts, hidden, inter;
  std::int64_t pairs() const { return tokens * k; }
};

}  // namespace tileformer::moe
