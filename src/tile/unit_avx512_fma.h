// AVX-512 FMA: fp32 and fp16 on every AVX-512 machine, bf16 where there are no bf16 dot products.
#pragma once

#include "tile/vec_avx512.h"
//
#include "tile/vec_math.h"

namespace tileformer::TILEFORMER_UNIT {
inline constexpr int kVecs = 2;
inline constexpr int kKeyRows = 6;
inline constexpr int kOutputRows = 8;
inline constexpr int kKeyBlock = 192;         // P of a block is 24 KiB of L1
inline constexpr int kGradientKeyBlock = 96;  // P and dS of a query block are 96 KiB of L2
inline constexpr int kGradientGroups = 4;     // lane groups of a query block in the backward
inline constexpr const char* kUnitName = "avx512-fma";
}  // namespace tileformer::TILEFORMER_UNIT

#include "tile/words_fp32.h"
//
#include "tile/rows_fp32.h"
//
#include "tile/cube_register.h"
