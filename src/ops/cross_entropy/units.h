// The compiled cross-entropy kernels, one per unit.
#pragma once

#include "ops/cross_entropy/kernel_args.h"
#include "tileformer/isa.h"

namespace tileformer::cross_entropy_op {

// The unit that computes dtype on the ISA. Null if it is not compiled in.
const Unit* find_unit(Isa isa, DType dtype);

// By name, also those that are compiled for tests only. Null: not compiled.
const Unit* find_unit(const char* name);

// For tests: every following call of this thread runs on the unit (null: as usual).
void force_unit(const Unit* unit);
const Unit* forced_unit();

}  // namespace tileformer::cross_entropy_op
