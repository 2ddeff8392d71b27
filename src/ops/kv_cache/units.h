// The compiled append kernels, one per unit.
#pragma once

#include "ops/kv_cache/kernel_args.h"
#include "tileformer/isa.h"

namespace tileformer::kv_cache {

// The unit that appends rows of dtype on the ISA. Null if it is not compiled in.
const Unit* find_unit(Isa isa, DType dtype);

// By name, also those that are compiled for tests only. Null: not compiled.
const Unit* find_unit(const char* name);

// For tests: every following call of this thread runs on the unit (null: as usual).
void force_unit(const Unit* unit);
const Unit* forced_unit();

// For tests: whether appends of this thread go past the caches, by their size or in any case.
enum class Stream : std::uint8_t { by_size, always };
void force_stream(Stream stream);
Stream forced_stream();

}  // namespace tileformer::kv_cache
