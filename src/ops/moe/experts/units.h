// The compiled kernels of experts, one per unit.
#pragma once

#include "ops/moe/experts/kernel_args.h"
#include "ops/unit_table.h"

namespace tileformer::moe {

const UnitTable<Unit>& units();

}  // namespace tileformer::moe
