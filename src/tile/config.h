// Every header here is compiled once per unit, each time into that unit's own namespace: the same inline
// function built with different flags must never meet itself at link time. For the same reason nothing here
// uses the standard library's functions or containers.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tileformer/dtype.h"

#ifndef TILEFORMER_UNIT
#error "TILEFORMER_UNIT names the unit to compile for, see cmake/isa.cmake"
#endif

#define TF_INLINE [[gnu::always_inline]] static inline
#define TF_MEMBER [[gnu::always_inline]] inline
#define TF_NOINLINE [[gnu::noinline]] static
#define TF_COLD [[gnu::noinline, gnu::cold]] static
#define TF_UNROLL _Pragma("GCC unroll 32")
#define TF_UNROLL_BY_4 _Pragma("GCC unroll 4")
#define TF_NO_UNROLL _Pragma("GCC unroll 1")
#define TF_LIKELY(x) __builtin_expect(!!(x), 1)
#define TF_UNLIKELY(x) __builtin_expect(!!(x), 0)

#define TF_STRINGIZE_(x) #x
#define TF_STRINGIZE(x) TF_STRINGIZE_(x)

namespace tileformer::TILEFORMER_UNIT {

template <class T>
TF_INLINE constexpr T min_of(T a, T b) {
  return b < a ? b : a;
}
template <class T>
TF_INLINE constexpr T max_of(T a, T b) {
  return a < b ? b : a;
}
TF_INLINE constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }
TF_INLINE constexpr std::int64_t round_up(std::int64_t a, std::int64_t b) { return ceil_div(a, b) * b; }

// In a loop that waits for another thread.
TF_INLINE void pause_cpu() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// How the elements of a tensor are stored. Names for overloads of load and store.
struct F32 {
  using Element = float;
};
struct F64 {
  using Element = double;
};
struct F16 {
  using Element = std::uint16_t;
};
struct BF16 {
  using Element = std::uint16_t;
};
// Codes, which mean nothing without their scale.
struct I8 {
  using Element = std::int8_t;
};
// Two to a byte, the even one in the low half.
struct I4 {
  using Element = std::uint8_t;
};
struct E4M3 {
  using Element = std::uint8_t;
};
struct E5M2 {
  using Element = std::uint8_t;
};
template <class T>
inline constexpr bool kIsCode = sizeof(typename T::Element) == 1;

}  // namespace tileformer::TILEFORMER_UNIT
