// Element types that operators accept.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tileformer {

// i8 and the two fp8 types hold the codes of quantised tensors, an element being code * scale: whole numbers
// of -127..127, and OCP FP8 (2023) E4M3 (largest 448, no infinities) and E5M2 (largest 57344). i4x2 is a
// byte of two codes of -8..7, the first one in its low half.
enum class DType : std::uint8_t { f32, f16, bf16, f64, i32, i64, boolean, i8, f8_e4m3, f8_e5m2, i4x2 };

constexpr std::size_t size_of(DType t) {
  switch (t) {
    case DType::f64:
    case DType::i64: return 8;
    case DType::f32:
    case DType::i32: return 4;
    case DType::f16:
    case DType::bf16: return 2;
    case DType::boolean:
    case DType::i8:
    case DType::f8_e4m3:
    case DType::f8_e5m2:
    case DType::i4x2: return 1;
  }
  return 0;
}

constexpr const char* name_of(DType t) {
  switch (t) {
    case DType::f32: return "float32";
    case DType::f16: return "float16";
    case DType::bf16: return "bfloat16";
    case DType::f64: return "float64";
    case DType::i32: return "int32";
    case DType::i64: return "int64";
    case DType::boolean: return "bool";
    case DType::i8: return "int8";
    case DType::f8_e4m3: return "float8_e4m3fn";
    case DType::f8_e5m2: return "float8_e5m2";
    case DType::i4x2: return "int4x2";
  }
  return "?";
}

constexpr bool is_floating(DType t) {
  return t == DType::f32 || t == DType::f16 || t == DType::bf16 || t == DType::f64;
}

// Codes of one byte each, which mean nothing without their scale.
constexpr bool is_quantized(DType t) { return t == DType::i8 || t == DType::f8_e4m3 || t == DType::f8_e5m2; }

}  // namespace tileformer
