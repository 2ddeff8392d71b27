// Elements of any dtype as double, for code where clarity counts and speed does not.
#pragma once

#include <cmath>
#include <cstdint>

#include "base/scalar.h"
#include "tileformer/dtype.h"

namespace tileformer {

// index in elements. Booleans read as 0 or 1.
inline double load_element(const void* data, DType dtype, std::int64_t index) {
  switch (dtype) {
    case DType::f64: return static_cast<const double*>(data)[index];
    case DType::f32: return static_cast<const float*>(data)[index];
    case DType::f16: return f32_from_f16(static_cast<const std::uint16_t*>(data)[index]);
    case DType::bf16: return f32_from_bf16(static_cast<const std::uint16_t*>(data)[index]);
    case DType::i64: return static_cast<double>(static_cast<const std::int64_t*>(data)[index]);
    case DType::i32: return static_cast<const std::int32_t*>(data)[index];
    case DType::boolean: return static_cast<const std::uint8_t*>(data)[index] != 0;
    case DType::i8: return static_cast<const std::int8_t*>(data)[index];
    case DType::f8_e4m3: return f32_from_e4m3(static_cast<const std::uint8_t*>(data)[index]);
    case DType::f8_e5m2: return f32_from_e5m2(static_cast<const std::uint8_t*>(data)[index]);
    case DType::i4x2: break;  // a byte is two elements
  }
  return 0;
}

// Rounds to nearest even. Half types round through float.
inline void store_element(void* data, DType dtype, std::int64_t index, double value) {
  switch (dtype) {
    case DType::f64: static_cast<double*>(data)[index] = value; return;
    case DType::f32: static_cast<float*>(data)[index] = static_cast<float>(value); return;
    case DType::f16:
      static_cast<std::uint16_t*>(data)[index] = f16_from_f32(static_cast<float>(value));
      return;
    case DType::bf16:
      static_cast<std::uint16_t*>(data)[index] = bf16_from_f32(static_cast<float>(value));
      return;
    case DType::i64: static_cast<std::int64_t*>(data)[index] = static_cast<std::int64_t>(value); return;
    case DType::i32: static_cast<std::int32_t*>(data)[index] = static_cast<std::int32_t>(value); return;
    case DType::boolean: static_cast<std::uint8_t*>(data)[index] = value != 0; return;
    case DType::i8:
      static_cast<std::int8_t*>(data)[index] = static_cast<std::int8_t>(std::nearbyint(value));
      return;
    case DType::f8_e4m3:
      static_cast<std::uint8_t*>(data)[index] = e4m3_from_f32(static_cast<float>(value));
      return;
    case DType::f8_e5m2:
      static_cast<std::uint8_t*>(data)[index] = e5m2_from_f32(static_cast<float>(value));
      return;
    case DType::i4x2: return;
  }
}

}  // namespace tileformer
