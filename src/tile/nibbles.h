// Codes of four bits, -8 to 7, two to a byte: element 2 i is the low half of byte i. In the compiler's own
// vectors, which become the instructions of every unit.
#pragma once

#include "tile/config.h"

namespace tileformer::TILEFORMER_UNIT {

typedef std::int16_t NibbleShorts __attribute__((vector_size(4 * kVecLanes)));

// The codes of kVecLanes words as 16-bit whole numbers: element 4 i + k is number i of vector k.
TF_INLINE void load_nibbles(const std::uint8_t* p, I (&x)[4]) {
  NibbleShorts all;
  __builtin_memcpy(&all, p, sizeof all);
  const NibbleShorts code[4] = {(all << 12) >> 12, (all << 8) >> 12, (all << 4) >> 12, all >> 12};
  TF_UNROLL for (int k = 0; k < 4; ++k) x[k] = __builtin_bit_cast(I, code[k]);
}

// 16 bytes as 32 codes of a byte each, in their order.
TF_INLINE void nibbles_to_bytes(const std::uint8_t* p, std::int8_t* out) {
  typedef std::int8_t Bytes16 __attribute__((vector_size(16)));
  typedef std::uint8_t Unsigned16 __attribute__((vector_size(16)));
  Unsigned16 all;
  __builtin_memcpy(&all, p, sizeof all);
  // Through 0 to 15, as 8 more: bytes have no arithmetic shift.
  const Bytes16 low = Bytes16((all & 15) ^ 8) - 8, high = Bytes16((all >> 4) ^ 8) - 8;
  const Bytes16 first = __builtin_shufflevector(low, high, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7,
                                                23),
                second = __builtin_shufflevector(low, high, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14,
                                                 30, 15, 31);
  __builtin_memcpy(out, &first, sizeof first);
  __builtin_memcpy(out + 16, &second, sizeof second);
}

}  // namespace tileformer::TILEFORMER_UNIT
