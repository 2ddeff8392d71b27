// AVX-512 BF16 dot products (Zen 4 and later, Sapphire Rapids and later without its tiles). 32 registers hold
// 6 x 2 or 8 x 2 accumulators and leave room for the softmax that runs between the steps.
#pragma once

#include "base/scalar.h"
#include "tile/vec_avx512.h"
//
#include "tile/vec_math.h"

namespace tileformer::TILEFORMER_UNIT {
inline constexpr int kVecs = 2;
inline constexpr int kKeyRows = 6;
inline constexpr int kOutputRows = 8;
inline constexpr int kKeyBlock = 240;  // P of a block is 15 KiB, half of L1
inline constexpr int kGradientKeyBlock =
    192;  // P and dS of a query block are 192 KiB of L2, and dS for dQ another 96
inline constexpr int kGradientGroups = 8;  // lane groups of a query block in the backward
inline constexpr const char* kUnitName = "avx512-bf16-dot";
}  // namespace tileformer::TILEFORMER_UNIT

#include "tile/words_bf16.h"
//
#include "tile/rows_bf16.h"
//
#include "tile/cube_register.h"
