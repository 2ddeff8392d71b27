// AMX bf16 tiles, with AVX-512 for everything that is not a product (Sapphire Rapids and later).
#pragma once

#include "base/scalar.h"
#include "tile/vec_avx512.h"
//
#include "tile/tiles_native.h"
#include "tile/vec_math.h"

namespace tileformer::TILEFORMER_UNIT {
inline constexpr int kVecs = 2;
inline constexpr int kKeyRows = 32;
inline constexpr int kOutputRows = 16;
inline constexpr int kKeyBlock = 256;  // P of a block is 16 KiB of the 48 KiB of L1
inline constexpr int kGradientKeyBlock = 256;
inline constexpr int kGradientGroups = 8;  // lane groups of a query block in the backward
inline constexpr const char* kUnitName = "amx-bf16";
}  // namespace tileformer::TILEFORMER_UNIT

#include "tile/words_bf16.h"
//
#include "tile/rows_bf16.h"
//
#include "tile/cube_amx.h"
