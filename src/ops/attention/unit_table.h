// Which kernels a call runs on. Apart from units.h, which kernels include.
#pragma once

#include "ops/attention/units.h"
#include "ops/unit_table.h"

namespace tileformer::attention {

const UnitTable<Unit>& units();

}  // namespace tileformer::attention
