// Any machine: the compiler's own vectors of 4 lanes, multiply and add.
#pragma once

#define TF_GENERIC_LANES 4
#include "tile/vec_generic.h"
//
#include "tile/vec_math.h"

namespace tileformer::TILEFORMER_UNIT {
inline constexpr int kVecs = 2;
inline constexpr int kKeyRows = 6;
inline constexpr int kOutputRows = 6;
inline constexpr int kKeyBlock = 240;
inline constexpr int kGradientKeyBlock = 96;
inline constexpr int kGradientGroups = 8;  // lane groups of a query block in the backward
inline constexpr const char* kUnitName = "portable-fma";
}  // namespace tileformer::TILEFORMER_UNIT

#include "tile/words_fp32.h"
//
#include "tile/rows_fp32.h"
//
#include "tile/cube_register.h"
