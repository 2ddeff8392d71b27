// The unit that this translation unit is compiled for: vectors (vec_*.h) and matrix products (cube_*.h).
#pragma once

#include "tile/config.h"

// clang-format off: spaces around the slash would become part of the path
#define TF_UNIT_HEADER_(unit) TF_STRINGIZE(tile/unit_##unit.h)
// clang-format on
#define TF_UNIT_HEADER(unit) TF_UNIT_HEADER_(unit)
#include TF_UNIT_HEADER(TILEFORMER_UNIT)
