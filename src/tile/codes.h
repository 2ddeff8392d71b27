// fp32 as codes of one byte; included after unit.h. Rounded to nearest even, the same codes as base/scalar.h
// makes; those of a NaN mean nothing.
#pragma once

namespace tileformer::TILEFORMER_UNIT {

template <class T>
inline constexpr float kLargestCode = 0;
template <>
inline constexpr float kLargestCode<I8> = 127;
template <>
inline constexpr float kLargestCode<E4M3> = 448;
template <>
inline constexpr float kLargestCode<E5M2> = 57344;

// x is at most the largest code, give or take one unit in the last place of fp32: no larger code comes out.
TF_INLINE I code_of(F x, I8) {
  // 1.5 * 2^23: the sum is rounded to a whole number, whose low byte is that of the sum.
  return as_int(add(x, set(12582912.0f)));
}

// kBits are lost of the mantissa; floats below kNormal (as bits) are subnormal codes, whose unit is that of
// floats around `magic`; kBias moves the exponent, as bits. The sign is the byte's top bit.
template <int kBits, std::int32_t kNormal, std::int32_t kBias>
TF_INLINE I fp8_of(F x, float magic) {
  const F magnitude = abs(x);
  const I bits = as_int(magnitude);
  const I subnormal = sub_int(as_int(add(magnitude, set(magic))), as_int(set(magic)));
  const I odd = shift_right_arithmetic<31>(shift_left<31 - kBits>(bits));  // -1 or 0
  const I half = sub_int(add_int(bits, set_int((1 << (kBits - 1)) - 1 - kBias)), odd);
  const I normal = shift_right_arithmetic<kBits>(half);
  const I code = as_int(select(greater_int(set_int(kNormal), bits), as_float(subnormal), as_float(normal)));
  const I sign = shift_left<7>(shift_right_arithmetic<31>(as_int(x)));
  return add_int(code, sign);
}
TF_INLINE I code_of(F x, E4M3) { return fp8_of<20, 0x3c800000, 120 << 23>(x, 16384.0f); }
TF_INLINE I code_of(F x, E5M2) { return fp8_of<21, 0x38800000, 112 << 23>(x, 128.0f); }

// Codes of x * factor, four vectors at a time.
template <class T>
TF_INLINE void store_codes(void* p, const float* x, F factor) {
  I code[4];
  TF_UNROLL for (int i = 0; i < 4; ++i) code[i] =
      code_of(rounded(mul(load_unaligned(x + i * kVecLanes), factor)), T{});
  store_low_bytes(p, code);
}

}  // namespace tileformer::TILEFORMER_UNIT
