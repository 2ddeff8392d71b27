// fp32 as codes of one byte; included after unit.h. Rounded to nearest even and saturated, the same codes as
// base/scalar.h makes; those of a NaN mean nothing.
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

template <class T>
TF_INLINE F saturated(F x) {
  return min(max(x, set(-kLargestCode<T>)), set(kLargestCode<T>));
}

TF_INLINE void store_codes(std::int8_t* p, F x, I8) {
  // 1.5 * 2^23: the sum is rounded to a whole number, whose low byte is that of the sum.
  store_low_bytes(p, as_int(add(rounded(saturated<I8>(x)), set(12582912.0f))));
}

// kBits are lost of the mantissa; floats below kNormal (as bits) are subnormal codes, whose unit is that of
// floats around kMagic; kBias moves the exponent, as bits. The sign is the byte's top bit.
template <int kBits, std::int32_t kNormal, std::int32_t kBias>
TF_INLINE I fp8_of(F x, float magic) {
  const F magnitude = abs(x);
  const I bits = as_int(magnitude);
  const I subnormal = sub_int(as_int(add(magnitude, set(magic))), as_int(set(magic)));
  const I odd = shift_right_arithmetic<31>(shift_left<31 - kBits>(bits));  // -1 or 0
  const I half = add_int(bits, sub_int(set_int((1 << (kBits - 1)) - 1), odd));
  const I normal = shift_right_arithmetic<kBits>(sub_int(half, set_int(kBias)));
  const I code = as_int(select(greater_int(set_int(kNormal), bits), as_float(subnormal), as_float(normal)));
  const I sign = shift_left<7>(shift_right_arithmetic<31>(as_int(x)));
  return add_int(code, sign);
}
TF_INLINE void store_codes(std::uint8_t* p, F x, E4M3) {
  store_low_bytes(p, fp8_of<20, 0x3c800000, 120 << 23>(saturated<E4M3>(x), 16384.0f));
}
TF_INLINE void store_codes(std::uint8_t* p, F x, E5M2) {
  store_low_bytes(p, fp8_of<21, 0x38800000, 112 << 23>(saturated<E5M2>(x), 128.0f));
}

}  // namespace tileformer::TILEFORMER_UNIT
