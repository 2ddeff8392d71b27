// NEON with BFDOT (Armv8.6, Neoverse V1 and N2 and later): 6 x 4 accumulators as in unit_neon_fma.h, two
// products a lane.
#pragma once

#define TF_GENERIC_LANES 4
#include "tile/vec_generic.h"
//
#include "tile/vec_math.h"

namespace tileformer::TILEFORMER_UNIT {
inline constexpr int kVecs = 4;
inline constexpr int kKeyRows = 6;
inline constexpr int kOutputRows = 6;
inline constexpr int kKeyBlock = 240;
inline constexpr int kGradientKeyBlock = 192;
inline constexpr int kGradientGroups = 16;  // lane groups of a query block in the backward
inline constexpr const char* kUnitName = "neon-bf16-dot";
}  // namespace tileformer::TILEFORMER_UNIT

#include "tile/words_bf16_generic.h"
//
#include "tile/rows_bf16.h"
//
#include "tile/cube_register.h"
