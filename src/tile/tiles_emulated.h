// AMX tiles in plain C++: the same words as tiles_native.h on any machine, for tests.
#pragma once

#include "base/scalar.h"
#include "tile/config.h"

namespace tileformer::TILEFORMER_UNIT {

struct Tile {
  std::uint32_t row[16][16];
};
static thread_local Tile tiles[8];
static thread_local bool tiles_configured = false;

TF_INLINE void configure_tiles() { tiles_configured = true; }
TF_INLINE void release_tiles() { tiles_configured = false; }
TF_INLINE Tile& tile_at(int t) {
  if (!tiles_configured) __builtin_trap();  // hardware raises #UD
  return tiles[t];
}

TF_NOINLINE void tile_zero(int t) { tile_at(t) = Tile{}; }
TF_NOINLINE void tile_load(int t, const void* p, std::int64_t stride) {
  for (int r = 0; r < 16; ++r)
    __builtin_memcpy(tile_at(t).row[r], static_cast<const char*>(p) + r * stride, 64);
}
TF_NOINLINE void tile_store(int t, void* p, std::int64_t stride) {
  for (int r = 0; r < 16; ++r) __builtin_memcpy(static_cast<char*>(p) + r * stride, tile_at(t).row[r], 64);
}
// TDPBF16PS: acc[m][n] += sum over k of a[m][k] . b[k][n], k pairs of bf16.
TF_NOINLINE void tile_dot(int acc, int a, int b) {
  for (int m = 0; m < 16; ++m)
    for (int k = 0; k < 16; ++k) {
      const std::uint32_t x = tile_at(a).row[m][k];
      const float low = f32_from_bf16(static_cast<std::uint16_t>(x)),
                  high = f32_from_bf16(static_cast<std::uint16_t>(x >> 16));
      for (int n = 0; n < 16; ++n) {
        const std::uint32_t y = tile_at(b).row[k][n];
        float sum = float_of(tile_at(acc).row[m][n]);
        sum += low * f32_from_bf16(static_cast<std::uint16_t>(y));
        sum += high * f32_from_bf16(static_cast<std::uint16_t>(y >> 16));
        tile_at(acc).row[m][n] = bits_of(sum);
      }
    }
}

}  // namespace tileformer::TILEFORMER_UNIT

#define TF_TILE_ZERO(tile) tile_zero(tile)
#define TF_TILE_LOAD(tile, p, stride_bytes) tile_load(tile, p, stride_bytes)
#define TF_TILE_STORE(tile, p, stride_bytes) tile_store(tile, p, stride_bytes)
#define TF_TILE_DOT(acc, a, b) tile_dot(acc, a, b)
