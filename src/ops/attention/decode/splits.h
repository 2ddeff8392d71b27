// How decode cuts a sequence. Shared by the plan (baseline code) and the kernels.
#pragma once

#include <cstdint>

namespace tileformer::attention {

// Splits start at multiples of so many keys, wherever the work goes: every split is attended to from nothing
// and joined in order, so results depend neither on threads nor on the batch. Joining costs one pass over O,
// 512 keys of one read of K and V each.
inline constexpr std::int64_t kSplitKeys = 512;

// The most queries of a sequence that decode takes, and the most rows: queries times heads of a group.
inline constexpr std::int64_t kDecodeQueries = 16;
inline constexpr std::int64_t kDecodeRows = 128;

}  // namespace tileformer::attention
