// The tile registers of AMX. Macros, because a tile's number is part of the instruction. The tile words are
// the same in tiles_emulated.h.
#pragma once

#include <immintrin.h>

#define TF_TILE_ZERO(tile) _tile_zero(tile)
#define TF_TILE_LOAD(tile, p, stride_bytes) _tile_loadd(tile, p, stride_bytes)
#define TF_TILE_STORE(tile, p, stride_bytes) _tile_stored(tile, p, stride_bytes)
#define TF_TILE_DOT(acc, a, b) _tile_dpbf16ps(acc, a, b)

namespace tileformer::TILEFORMER_UNIT {

// Every tile 16 rows of 64 bytes. Operands are padded with zeros instead of reshaping tiles at the edges:
// loading a configuration costs more than the few products it saves.
TF_INLINE void configure_tiles() {
  struct alignas(64) {
    std::uint8_t palette, start_row, reserved[14];
    std::uint16_t row_bytes[16];
    std::uint8_t rows[16];
  } config = {};
  config.palette = 1;
  for (int t = 0; t < 8; ++t) {
    config.row_bytes[t] = 64;
    config.rows[t] = 16;
  }
  // GCC's intrinsic claims to read eight bytes of it.
  asm volatile("" : : "r"(&config) : "memory");
  _tile_loadconfig(&config);
}
TF_INLINE void release_tiles() { _tile_release(); }

}  // namespace tileformer::TILEFORMER_UNIT
