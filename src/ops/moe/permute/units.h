// The compiled kernels of permute_tokens and unpermute_tokens, one per unit.
#pragma once

#include "ops/moe/permute/kernel_args.h"
#include "ops/unit_table.h"

namespace tileformer::permute_op {

const UnitTable<Unit>& units();

}  // namespace tileformer::permute_op
