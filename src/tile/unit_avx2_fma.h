// AVX2 FMA: 16 registers hold a tile of 6 x 2 accumulators, two vectors of the packed operand and one
// broadcast. A step is 12 FMAs and 8 loads: both ports busy for 6 cycles (Zen 2 to 4, Haswell and later).
#pragma once

#include "tile/vec_avx2.h"
//
#include "tile/vec_math.h"

namespace tileformer::TILEFORMER_UNIT {
inline constexpr int kVecs = 2;
inline constexpr int kKeyRows = 6;
inline constexpr int kOutputRows = 6;
inline constexpr int kKeyBlock = 240;         // P of a block is 15 KiB, half of L1
inline constexpr int kGradientKeyBlock = 96;  // P and dS of a query block are 96 KiB of L2
inline constexpr int kGradientGroups = 8;     // lane groups of a query block in the backward
inline constexpr const char* kUnitName = "avx2-fma";
}  // namespace tileformer::TILEFORMER_UNIT

#include "tile/words_fp32.h"
//
#include "tile/rows_fp32.h"
//
#include "tile/cube_register.h"
