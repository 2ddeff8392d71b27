// The compiled kernels of merge_attention_states, one per unit.
#pragma once

#include "ops/merge_attention/kernel_args.h"
#include "ops/unit_table.h"

namespace tileformer::merge_attention {

const UnitTable<Unit>& units();

}  // namespace tileformer::merge_attention
