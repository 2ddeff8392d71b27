// The compiled kernels of experts, one per unit.
#pragma once

#include "ops/moe/experts/backward/kernel_args.h"
#include "ops/unit_table.h"

namespace tileformer::moe {

const UnitTable<Unit>& units();
const BackwardKernel& backward_kernel_of(const Unit& unit);

}  // namespace tileformer::moe
