// The unit that this translation unit is compiled for: vectors (vec_*.h) and matrix products (cube_*.h).
#pragma once

#include "tile/config.h"

// It would put spaces into the path:
// clang-format off
#define TF_UNIT_HEADER_(unit) TF_STRINGIZE(tile/unit_##unit.h)
// clang-format on
#define TF_UNIT_HEADER(unit) TF_UNIT_HEADER_(unit)
#include TF_UNIT_HEADER(TILEFORMER_UNIT)
