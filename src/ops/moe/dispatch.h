// Which (token, slot) pairs each expert serves: a stable counting sort of the expert indices.
#pragma once

#include <cstdint>

#include "tileformer/status.h"
#include "tileformer/tensor_view.h"

namespace tileformer::moe {

// experts[token, slot].
struct Pair {
  std::int32_t token, slot;
};

// In memory of the caller's.
struct Dispatch {
  // [num_experts + 2]. Expert e serves pair[offset[e]] to pair[offset[e + 1]]; no expert serves those from
  // offset[num_experts] to offset[num_experts + 1], the end.
  std::int64_t* offset;
  // [tokens * k], in the order of experts, then of tokens, then of slots.
  Pair* pair;
};

// experts: i32 or i64 [tokens, k], any strides. Looks at no index.
Status check_dispatch(const TensorView& experts, std::int64_t num_experts);

// What check_dispatch passed, sorted, in time linear in pairs and experts. An index of -1 or of num_experts
// stands for no expert. Any other outside 0..num_experts-1 is an error, found before a pair is written.
Status dispatch(const TensorView& experts, std::int64_t num_experts, const Dispatch& to);

}  // namespace tileformer::moe
