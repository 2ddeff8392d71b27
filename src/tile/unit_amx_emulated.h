// unit_amx_bf16.h on emulated tiles and the compiler's own vectors; tests only.
#pragma once

#define TF_GENERIC_LANES 16
#include "tile/vec_generic.h"
//
#include "tile/tiles_emulated.h"
#include "tile/vec_math.h"

namespace tileformer::TILEFORMER_UNIT {
inline constexpr int kVecs = 2;
inline constexpr int kKeyRows = 32;
inline constexpr int kOutputRows = 16;
inline constexpr int kKeyBlock = 256;
inline constexpr int kGradientKeyBlock = 256;
inline constexpr int kGradientGroups = 8;  // lane groups of a query block in the backward
inline constexpr const char* kUnitName = "amx-emulated";
}  // namespace tileformer::TILEFORMER_UNIT

#include "tile/words_bf16_generic.h"
//
#include "tile/rows_bf16.h"
//
#include "tile/cube_amx.h"
