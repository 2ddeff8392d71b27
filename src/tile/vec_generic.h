// Vector words in the compiler's own vector types, TF_GENERIC_LANES lanes of fp32: any CPU, and NEON, for
// which this compiles to its instructions.
#pragma once

#include "base/scalar.h"
#include "tile/config.h"

#ifndef TF_GENERIC_LANES
#error "the unit sets TF_GENERIC_LANES"
#endif

namespace tileformer::TILEFORMER_UNIT {

inline constexpr int kVecLanes = TF_GENERIC_LANES;
#if defined(__aarch64__)
inline constexpr int kVecRegisters = 32;
#else
inline constexpr int kVecRegisters = 16;
#endif
typedef float F __attribute__((vector_size(4 * TF_GENERIC_LANES)));
typedef std::int32_t I __attribute__((vector_size(4 * TF_GENERIC_LANES)));
typedef std::uint32_t Unsigned __attribute__((vector_size(4 * TF_GENERIC_LANES)));
using M = I;  // -1 or 0 in each lane

template <class To, class From>
TF_INLINE To read(const From* p) {
  To x;
  __builtin_memcpy(&x, p, sizeof x);
  return x;
}

TF_INLINE F load(const float* p) { return *reinterpret_cast<const F*>(p); }
TF_INLINE F load_unaligned(const float* p) { return read<F>(p); }
TF_INLINE void store(float* p, F x) { *reinterpret_cast<F*>(p) = x; }
TF_INLINE void store_unaligned(float* p, F x) { __builtin_memcpy(p, &x, sizeof x); }
TF_INLINE F zero() { return F{}; }
TF_INLINE F set(float x) { return x - F{}; }
TF_INLINE F broadcast(const float* p) { return set(*p); }
TF_INLINE F add(F a, F b) { return a + b; }
// x as it was rounded: the compiler may join a multiply and an add into one fma otherwise.
TF_INLINE F rounded(F x) {
  asm("" : "+m"(x));
  return x;
}
TF_INLINE F sub(F a, F b) { return a - b; }
TF_INLINE F mul(F a, F b) { return a * b; }
TF_INLINE F div(F a, F b) { return a / b; }
// One rounding or two, as the target has it; the same in every lane.
TF_INLINE F fma(F a, F b, F c) { return a * b + c; }
TF_INLINE F as_float(I x) { return reinterpret_cast<F>(x); }
TF_INLINE I as_int(F x) { return reinterpret_cast<I>(x); }
TF_INLINE F select(M m, F yes, F no) { return as_float((as_int(yes) & m) | (as_int(no) & ~m)); }
// The second operand where either is NaN.
TF_INLINE F max(F a, F b) { return select(a > b, a, b); }
TF_INLINE F min(F a, F b) { return select(a < b, a, b); }
TF_INLINE F abs(F x) { return as_float(as_int(x) & 0x7fffffff); }
// To the nearest whole number, ties to even; 2^23 and beyond are whole already.
TF_INLINE F round(F x) {
  const F sign = as_float(as_int(x) & static_cast<std::int32_t>(0x80000000u));
  F magic = as_float(as_int(set(8388608.0f)) | as_int(sign));
  F sum = x + magic;
  asm("" : "+m"(sum));  // keeps the pair of additions
  return select(abs(x) < 8388608.0f, sum - magic, x);
}

TF_INLINE I load_int(const std::int32_t* p) { return *reinterpret_cast<const I*>(p); }
TF_INLINE I set_int(std::int32_t x) { return x - I{}; }
// Integers wrap around, as they do in the instructions of other units.
TF_INLINE I add_int(I a, I b) { return I(Unsigned(a) + Unsigned(b)); }
TF_INLINE I sub_int(I a, I b) { return I(Unsigned(a) - Unsigned(b)); }
template <int kBits>
TF_INLINE I shift_left(I x) {
  return I(Unsigned(x) << kBits);
}
template <int kBits>
TF_INLINE I shift_right_arithmetic(I x) {
  return x >> kBits;
}
TF_INLINE F to_float(I x) { return __builtin_convertvector(x, F); }

TF_INLINE M greater(F a, F b) { return a > b; }
TF_INLINE M equal(F a, F b) { return a == b; }
TF_INLINE M greater_int(I a, I b) { return a > b; }
TF_INLINE M both(M a, M b) { return a & b; }
TF_INLINE M either(M a, M b) { return a | b; }
TF_INLINE bool any(M m) {
  std::int32_t x = 0;
  TF_UNROLL for (int l = 0; l < kVecLanes; ++l) x |= m[l];
  return x != 0;
}
TF_INLINE bool all(M m) { return !any(~m); }
// The lowest lane that is set; one is.
TF_INLINE int first_set(M m) {
  int first = 0;
  TF_UNROLL for (int l = kVecLanes - 1; l >= 0; --l) first = m[l] ? l : first;
  return first;
}
TF_INLINE M nonzero_bytes(const std::uint8_t* p) {
  I x;
  TF_UNROLL for (int l = 0; l < kVecLanes; ++l) x[l] = p[l];
  return x != 0;
}

// 2^x for x < 127, relative error 2e-7; exactly 0 from -127 down (-inf too); NaN stays NaN. |r| <= 1/2,
// Taylor series of degree 7 (its rest is 2^-24 / 10).
TF_INLINE F exp2(F x) {
  x = max(set(-127.0f), x);
  F t = x + 12582912.0f;  // 1.5 * 2^23: rounds to a whole number, which stands in the low bits
  asm("" : "+m"(t));
  const F r = x - (t - 12582912.0f);
  F p = fma(r, set(1.52527339e-5f), set(1.54035304e-4f));
  p = fma(p, r, set(1.33335581e-3f));
  p = fma(p, r, set(9.61812911e-3f));
  p = fma(p, r, set(5.55041087e-2f));
  p = fma(p, r, set(2.40226507e-1f));
  p = fma(p, r, set(6.93147181e-1f));
  const F scale = as_float(add_int(shift_left<23>(as_int(t)), set_int(0x3f800000)));
  return fma(p * r, scale, scale);
}
// 2^n for a whole n < 128, exact; 0 from -127 down.
TF_INLINE F exp2_whole(F n) {
  return as_float(shift_left<23>(add_int(__builtin_convertvector(max(n, set(-127.0f)), I), set_int(127))));
}

TF_INLINE F load_elements(const float* p, F32) { return load_unaligned(p); }
TF_INLINE void store_elements(float* p, F x, F32) { store_unaligned(p, x); }
#if defined(__ARM_NEON)
typedef __fp16 HalfVector __attribute__((vector_size(2 * TF_GENERIC_LANES)));
TF_INLINE F load_elements(const std::uint16_t* p, F16) {
  return __builtin_convertvector(read<HalfVector>(p), F);
}
TF_INLINE void store_elements(std::uint16_t* p, F x, F16) {
  const HalfVector h = __builtin_convertvector(x, HalfVector);
  __builtin_memcpy(p, &h, sizeof h);
}
#else
TF_INLINE F load_elements(const std::uint16_t* p, F16) {
  F x;
  TF_UNROLL for (int l = 0; l < kVecLanes; ++l) x[l] = f32_from_f16(p[l]);
  return x;
}
TF_INLINE void store_elements(std::uint16_t* p, F x, F16) {
  TF_UNROLL for (int l = 0; l < kVecLanes; ++l) p[l] = f16_from_f32(x[l]);
}
#endif
typedef std::uint16_t BitsOf16 __attribute__((vector_size(2 * TF_GENERIC_LANES)));
typedef std::uint32_t BitsOf32 __attribute__((vector_size(4 * TF_GENERIC_LANES)));
TF_INLINE F load_elements(const std::uint16_t* p, BF16) {
  return reinterpret_cast<F>(__builtin_convertvector(read<BitsOf16>(p), BitsOf32) << 16);
}
typedef std::int8_t Codes __attribute__((vector_size(TF_GENERIC_LANES)));
TF_INLINE F load_elements(const std::int8_t* p, I8) {
  return __builtin_convertvector(__builtin_convertvector(read<Codes>(p), I), F);
}
// fp8 of so many bits of mantissa and an exponent of so much bias. A subnormal is a whole number of the last
// place: as a float it would be one too, and might be flushed.
template <int kMantissa, int kBias>
TF_INLINE F load_fp8(const std::uint8_t* p, I* magnitude) {
  const I codes = __builtin_convertvector(read<Codes>(p), I);
  *magnitude = codes & 0x7f;
  const F normal = as_float(add_int(shift_left<23 - kMantissa>(*magnitude), set_int((127 - kBias) << 23)));
  const F whole = to_float(*magnitude) * (1.0f / (1 << (kBias - 1 + kMantissa)));
  const F x = select(*magnitude < (1 << kMantissa), whole, normal);
  return as_float(as_int(x) | (codes & static_cast<std::int32_t>(0x80000000u)));
}
TF_INLINE F load_elements(const std::uint8_t* p, E4M3) {
  I magnitude;
  const F x = load_fp8<3, 7>(p, &magnitude);
  return as_float(as_int(x) | ((magnitude == 0x7f) & 0x7fc00000));
}
TF_INLINE F load_elements(const std::uint8_t* p, E5M2) {
  I magnitude;
  const F x = load_fp8<2, 15>(p, &magnitude);
  return as_float(as_int(x) | ((magnitude >= 0x7c) & 0x7f800000));
}
TF_INLINE BitsOf16 to_bf16(F x) {
  const BitsOf32 bits = reinterpret_cast<BitsOf32>(x);
  const BitsOf32 rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const BitsOf32 nan = reinterpret_cast<BitsOf32>(x != x);
  return __builtin_convertvector((rounded & ~nan) | (0x7fc0u & nan), BitsOf16);
}
TF_INLINE void store_elements(std::uint16_t* p, F x, BF16) {
  const BitsOf16 h = to_bf16(x);
  __builtin_memcpy(p, &h, sizeof h);
}

// The low byte of each lane, of four vectors.
typedef std::uint8_t Bytes __attribute__((vector_size(TF_GENERIC_LANES)));
TF_INLINE void store_low_bytes(void* p, const I (&x)[4]) {
  TF_UNROLL for (int i = 0; i < 4; ++i) {
    const Bytes b = __builtin_convertvector(x[i], Bytes);
    __builtin_memcpy(static_cast<std::uint8_t*>(p) + i * kVecLanes, &b, sizeof b);
  }
}

TF_INLINE void transpose(F (&r)[kVecLanes]) {
  F t[kVecLanes];
  TF_UNROLL for (int i = 0; i < kVecLanes; ++i) TF_UNROLL for (int j = 0; j < kVecLanes; ++j) t[i][j] =
      r[j][i];
  TF_UNROLL for (int i = 0; i < kVecLanes; ++i) r[i] = t[i];
}

// The sums over the lanes of four vectors, in parts: join_sums adds them up. Here they are complete.
TF_INLINE F sum_of_four(F a, F b, F c, F d) {
  const F x[4] = {a, b, c, d};
  F sums = zero();
  TF_UNROLL for (int i = 0; i < 4; ++i) {
    float part[kVecLanes];
    TF_UNROLL for (int l = 0; l < kVecLanes; ++l) part[l] = x[i][l];
    TF_UNROLL for (int n = kVecLanes / 2; n > 0; n /= 2) TF_UNROLL for (int l = 0; l < n; ++l) part[l] +=
        part[l + n];
    sums[i] = part[0];
  }
  return sums;
}
// Lane i: the sum over the lanes of vector i of the kVecLanes that sum_of_four took, four by four.
TF_INLINE F join_sums(const F (&x)[kVecLanes / 4]) {
  F sums = zero();
  TF_UNROLL for (int i = 0; i < kVecLanes; ++i) sums[i] = x[i / 4][i % 4];
  return sums;
}

// 2 * kVecLanes elements; other units choose an order that is cheaper for them, see split_pair.
template <class E, class T>
TF_INLINE void load_pair(const E* p, F (&x)[2], T) {
  x[0] = load_elements(p, T{});
  x[1] = load_elements(p + kVecLanes, T{});
}
// Over kPairUnit, and the code of NaN as a number: has_nan_code tells.
TF_INLINE void load_pair(const std::uint8_t* p, F (&x)[2], E4M3) {
  TF_UNROLL for (int i = 0; i < 2 * kVecLanes; ++i) x[i / kVecLanes][i % kVecLanes] =
      f32_from_f16(static_cast<std::uint16_t>((p[i] & 0x80u) << 8 | (p[i] & 0x7fu) << 7));
}
// From natural order to load_pair's, and back.
template <class T>
TF_INLINE void split_pair(F (&)[2], T) {}
template <class T>
TF_INLINE void join_pair(F (&)[2], T) {}

// 16-bit whole numbers: a lane is a pair, the sum of a pair's products has 32 bits.
typedef std::int16_t Shorts __attribute__((vector_size(4 * TF_GENERIC_LANES)));
// 2 * kVecLanes neighbours.
TF_INLINE I load_shorts(const std::int8_t* p) {
  Shorts x;
  TF_UNROLL for (int i = 0; i < 2 * kVecLanes; ++i) x[i] = p[i];
  return reinterpret_cast<I>(x);
}
// The pairs (a[i], b[i]) of 2 * kVecLanes columns.
TF_INLINE void load_short_pairs(const std::int8_t* a, const std::int8_t* b, I (&x)[2]) {
  Shorts pairs[2];
  TF_UNROLL for (int i = 0; i < 2 * kVecLanes; ++i) {
    pairs[i / kVecLanes][2 * (i % kVecLanes)] = a[i];
    pairs[i / kVecLanes][2 * (i % kVecLanes) + 1] = b[i];
  }
  TF_UNROLL for (int i = 0; i < 2; ++i) x[i] = reinterpret_cast<I>(pairs[i]);
}
TF_INLINE I multiply_add_pairs(I sum, I a, I b) {
  const I low = ((a << 16) >> 16) * ((b << 16) >> 16), high = (a >> 16) * (b >> 16);
  return add_int(sum, add_int(low, high));
}
// kVecLanes numbers, rounded; |x| < 2^15.
TF_INLINE void store_shorts(std::int16_t* p, F x) {
  const F whole = round(x);
  TF_UNROLL for (int i = 0; i < kVecLanes; ++i) p[i] = static_cast<std::int16_t>(whole[i]);
}
// Lane l is p[l / kEach].
template <int kEach>
TF_INLINE F spread(const float* p) {
  F x;
  TF_UNROLL for (int l = 0; l < kVecLanes; ++l) x[l] = p[l / kEach];
  return x;
}

// Units of 16 lanes take V in halves (words_fp32.h).
template <class E, class T>
TF_INLINE F load_half_elements(const E* p, T) {
  return load_elements(p, T{});
}
TF_INLINE void store_low_half(float* p, F x) { store_unaligned(p, x); }

TF_INLINE void prefetch(const void* p) { __builtin_prefetch(p); }
// Into L2, for what is read a while later.
TF_INLINE void prefetch_far(const void* p) { __builtin_prefetch(p, 0, 2); }

}  // namespace tileformer::TILEFORMER_UNIT
