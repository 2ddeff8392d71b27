// The compiled kernels of grouped_matmul, one per unit.
#pragma once

#include "ops/moe/grouped_matmul/kernel_args.h"
#include "ops/unit_table.h"

namespace tileformer::moe::grouped {

const UnitTable<Unit>& units();

}  // namespace tileformer::moe::grouped
