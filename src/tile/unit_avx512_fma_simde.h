// unit_avx512_fma.h on the intrinsics of SIMDe; tests only.
#pragma once

#include "tile/unit_avx512_fma.h"
