// The compiled kernels of route and route_backward, one per unit.
#pragma once

#include "ops/moe/route/kernel_args.h"
#include "ops/unit_table.h"

namespace tileformer::route_op {

const UnitTable<Unit>& units();
const UnitTable<BackwardUnit>& backward_units();

}  // namespace tileformer::route_op
