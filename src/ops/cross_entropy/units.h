// The compiled cross-entropy kernels, one per unit.
#pragma once

#include "ops/cross_entropy/kernel_args.h"
#include "ops/unit_table.h"

namespace tileformer::cross_entropy_op {

const UnitTable<Unit>& units();

}  // namespace tileformer::cross_entropy_op
