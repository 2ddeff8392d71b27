// The compiled kernels of merge_attention_states, one per unit.
#pragma once

#include "ops/merge_attention/kernel_args.h"
#include "tileformer/isa.h"

namespace tileformer::merge_attention {

// The unit for fp32 arithmetic on the ISA. Null if it is not compiled in.
const Unit* find_unit(Isa isa);

// By name, also those that are compiled for tests only. Null: not compiled.
const Unit* find_unit(const char* name);

// For tests: every following call of this thread runs on the unit (null: as usual).
void force_unit(const Unit* unit);
const Unit* forced_unit();

}  // namespace tileformer::merge_attention
