// The compiled append kernels, one per unit.
#pragma once

#include "ops/kv_cache/kernel_args.h"
#include "ops/unit_table.h"

namespace tileformer::kv_cache {

const UnitTable<Unit>& units();

// For tests: whether appends of this thread go past the caches, by their size or in any case.
enum class Stream : std::uint8_t { by_size, always };
void force_stream(Stream stream);
Stream forced_stream();

}  // namespace tileformer::kv_cache
