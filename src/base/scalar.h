// bf16, fp16 and fp8 as bits, one element at a time: round to nearest, ties to even; NaN stays NaN, values
// beyond the range become infinite. The same results as the conversion instructions of AVX512-BF16, F16C and
// NEON with their default settings, subnormals kept.
//
// static, not inline: kernels include this under wide flags, and a weak symbol compiled there could be the
// copy that the linker keeps for every CPU.
#pragma once

#include <cstdint>
#include <cstring>

namespace tileformer {

static inline std::uint32_t bits_of(float x) {
  std::uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return bits;
}

static inline float float_of(std::uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}

static inline float f32_from_bf16(std::uint16_t x) { return float_of(std::uint32_t{x} << 16); }

static inline std::uint16_t bf16_from_f32(float x) {
  const std::uint32_t bits = bits_of(x);
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return std::uint16_t(bits >> 16 | 0x40u);  // NaN, made quiet
  return std::uint16_t((bits + 0x7FFFu + (bits >> 16 & 1u)) >> 16);
}

static inline float f32_from_f16(std::uint16_t x) {
  const std::uint32_t sign = std::uint32_t(x & 0x8000u) << 16;
  const std::uint32_t exponent = x >> 10 & 0x1Fu, mantissa = x & 0x3FFu;
  if (exponent == 0x1F) return float_of(sign | 0x7F800000u | mantissa << 13 | (mantissa ? 0x400000u : 0u));
  if (exponent == 0) return float_of(sign | bits_of(float(mantissa) * 0x1p-24f));
  return float_of(sign | (exponent + 112u) << 23 | mantissa << 13);
}

static inline std::uint16_t f16_from_f32(float x) {
  const std::uint32_t bits = bits_of(x);
  const std::uint32_t sign = bits >> 16 & 0x8000u, magnitude = bits & 0x7FFFFFFFu;
  if (magnitude > 0x7F800000u) return std::uint16_t(sign | 0x7E00u | (magnitude >> 13 & 0x3FFu));
  if (magnitude >= 0x477FF000u) return std::uint16_t(sign | 0x7C00u);  // 65520 and above round to infinity
  if (magnitude < 0x38800000u) {
    // Subnormal in fp16: one unit is 2^-24, which is also one unit of floats in [0.5, 1). The addition
    // rounds.
    return std::uint16_t(sign | (bits_of(float_of(magnitude) + 0.5f) - bits_of(0.5f)));
  }
  const std::uint32_t rounded = magnitude + 0xFFFu + (magnitude >> 13 & 1u);
  return std::uint16_t(sign | (rounded - (112u << 23)) >> 13);
}

// E5M2 is the upper half of fp16.
static inline float f32_from_e5m2(std::uint8_t x) { return f32_from_f16(std::uint16_t(x << 8)); }

// Bias 7, all ones is NaN: as fp16 its exponent is 8 too small.
static inline float f32_from_e4m3(std::uint8_t x) {
  if ((x & 0x7Fu) == 0x7Fu) return float_of(0x7FC00000u | std::uint32_t(x & 0x80u) << 24);
  return 256.0f * f32_from_f16(std::uint16_t((x & 0x80u) << 8 | (x & 0x7Fu) << 7));
}

// What is beyond the largest value saturates, infinities too (OCP FP8's saturating mode); NaN stays NaN.
static inline std::uint8_t e5m2_from_f32(float x) {
  const std::uint32_t sign = bits_of(x) >> 24 & 0x80u, magnitude = bits_of(x) & 0x7FFFFFFFu;
  if (magnitude > 0x7F800000u) return std::uint8_t(sign | 0x7Eu);
  if (magnitude >= 0x47600000u) return std::uint8_t(sign | 0x7Bu);  // 57344
  if (magnitude < 0x38800000u) {
    // Subnormal, in units of 2^-16, which is one unit of floats in [128, 256). The addition rounds.
    return std::uint8_t(sign | (bits_of(float_of(magnitude) + 128.0f) - bits_of(128.0f)));
  }
  const std::uint32_t rounded = magnitude + 0xFFFFFu + (magnitude >> 21 & 1u);
  return std::uint8_t(sign | ((rounded - (112u << 23)) >> 21));
}

static inline std::uint8_t e4m3_from_f32(float x) {
  const std::uint32_t sign = bits_of(x) >> 24 & 0x80u, magnitude = bits_of(x) & 0x7FFFFFFFu;
  if (magnitude > 0x7F800000u) return std::uint8_t(sign | 0x7Fu);
  if (magnitude >= 0x43E00000u) return std::uint8_t(sign | 0x7Eu);  // 448
  if (magnitude < 0x3C800000u) {
    // Subnormal, in units of 2^-9, which is one unit of floats in [2^14, 2^15).
    return std::uint8_t(sign | (bits_of(float_of(magnitude) + 16384.0f) - bits_of(16384.0f)));
  }
  const std::uint32_t rounded = magnitude + 0x7FFFFu + (magnitude >> 20 & 1u);
  return std::uint8_t(sign | ((rounded - (120u << 23)) >> 20));
}

}  // namespace tileformer
