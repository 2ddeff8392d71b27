// Vector words for AVX2 + FMA + F16C: 8 lanes of fp32.
#pragma once

#include <immintrin.h>

#include "tile/config.h"

namespace tileformer::TILEFORMER_UNIT {

inline constexpr int kVecLanes = 8;
inline constexpr int kVecRegisters = 16;
using F = __m256;
using I = __m256i;
using M = __m256;  // all bits of a lane set or none

TF_INLINE F load(const float* p) { return _mm256_load_ps(p); }
TF_INLINE F load_unaligned(const float* p) { return _mm256_loadu_ps(p); }
TF_INLINE void store(float* p, F x) { _mm256_store_ps(p, x); }
TF_INLINE void store_unaligned(float* p, F x) { _mm256_storeu_ps(p, x); }
TF_INLINE F zero() { return _mm256_setzero_ps(); }
TF_INLINE F set(float x) { return _mm256_set1_ps(x); }
TF_INLINE F broadcast(const float* p) { return _mm256_broadcast_ss(p); }
TF_INLINE F add(F a, F b) { return _mm256_add_ps(a, b); }
// x as it was rounded: the compiler may join a multiply and an add into one fma otherwise.
TF_INLINE F rounded(F x) {
  asm("" : "+x"(x));
  return x;
}
TF_INLINE F sub(F a, F b) { return _mm256_sub_ps(a, b); }
TF_INLINE F mul(F a, F b) { return _mm256_mul_ps(a, b); }
TF_INLINE F div(F a, F b) { return _mm256_div_ps(a, b); }
TF_INLINE F fma(F a, F b, F c) { return _mm256_fmadd_ps(a, b, c); }
// The second operand where either is NaN.
TF_INLINE F max(F a, F b) { return _mm256_max_ps(a, b); }
TF_INLINE F min(F a, F b) { return _mm256_min_ps(a, b); }
TF_INLINE F abs(F x) { return _mm256_andnot_ps(set(-0.0f), x); }
TF_INLINE F round(F x) { return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }

TF_INLINE I load_int(const std::int32_t* p) { return _mm256_load_si256(reinterpret_cast<const I*>(p)); }
TF_INLINE I set_int(std::int32_t x) { return _mm256_set1_epi32(x); }
TF_INLINE F as_float(I x) { return _mm256_castsi256_ps(x); }
TF_INLINE I as_int(F x) { return _mm256_castps_si256(x); }
TF_INLINE I add_int(I a, I b) { return _mm256_add_epi32(a, b); }
TF_INLINE I sub_int(I a, I b) { return _mm256_sub_epi32(a, b); }
template <int kBits>
TF_INLINE I shift_left(I x) {
  return _mm256_slli_epi32(x, kBits);
}
template <int kBits>
TF_INLINE I shift_right_arithmetic(I x) {
  return _mm256_srai_epi32(x, kBits);
}
TF_INLINE F to_float(I x) { return _mm256_cvtepi32_ps(x); }

TF_INLINE M greater(F a, F b) { return _mm256_cmp_ps(a, b, _CMP_GT_OQ); }
TF_INLINE M equal(F a, F b) { return _mm256_cmp_ps(a, b, _CMP_EQ_OQ); }
TF_INLINE M greater_int(I a, I b) { return as_float(_mm256_cmpgt_epi32(a, b)); }
TF_INLINE M both(M a, M b) { return _mm256_and_ps(a, b); }
TF_INLINE M either(M a, M b) { return _mm256_or_ps(a, b); }
TF_INLINE bool any(M m) { return _mm256_movemask_ps(m) != 0; }
TF_INLINE bool all(M m) { return _mm256_movemask_ps(m) == 0xff; }
// The lowest lane that is set; one is.
TF_INLINE int first_set(M m) { return __builtin_ctz(static_cast<unsigned>(_mm256_movemask_ps(m))); }
TF_INLINE F select(M m, F yes, F no) { return _mm256_blendv_ps(no, yes, m); }
// Lanes whose byte is not zero.
TF_INLINE M nonzero_bytes(const std::uint8_t* p) {
  const I x = _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
  return greater_int(x, _mm256_setzero_si256());
}

namespace exp2_table {
// 2^(i/8) as bits, i << 20 taken off: adding (n << 20), n the exponent in eighths, then gives 2^(n/8) to the
// bit.
TF_INLINE constexpr std::uint32_t entry(float x, std::uint32_t i) {
  return __builtin_bit_cast(std::uint32_t, x) - (i << 20);
}
alignas(32) inline constexpr std::uint32_t kBits[8] = {
    entry(1.0f, 0),       entry(1.0905077f, 1), entry(1.1892071f, 2), entry(1.2968396f, 3),
    entry(1.4142135f, 4), entry(1.5422108f, 5), entry(1.6817929f, 6), entry(1.8340081f, 7)};
}  // namespace exp2_table

// 2^x for x < 127, relative error 2e-7; exactly 0 from -127 down (-inf too); NaN stays NaN.
TF_INLINE F exp2(F x) {
  x = max(set(-127.0f), x);
  const F magic = set(1572864.0f);  // 1.5 * 2^20: one unit in the last place is 1/8
  const F t = add(x, magic);
  const F r = sub(x, sub(t, magic));
  F p = fma(r, set(0.0555041f), set(0.24022651f));
  p = mul(fma(p, r, set(0.69314718f)), r);
  const F table =
      _mm256_permutevar8x32_ps(_mm256_load_ps(reinterpret_cast<const float*>(exp2_table::kBits)), as_int(t));
  const F scale = as_float(add_int(as_int(table), shift_left<20>(as_int(t))));
  return fma(p, scale, scale);
}
// 2^n for a whole n < 128, exact; 0 from -127 down.
TF_INLINE F exp2_whole(F n) {
  return as_float(shift_left<23>(add_int(_mm256_cvtps_epi32(max(n, set(-127.0f))), set_int(127))));
}

TF_INLINE F load_elements(const float* p, F32) { return _mm256_loadu_ps(p); }
TF_INLINE F load_elements(const std::uint16_t* p, F16) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
TF_INLINE F load_elements(const std::uint16_t* p, BF16) {
  return as_float(
      shift_left<16>(_mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))));
}
TF_INLINE F load_elements(const std::int8_t* p, I8) {
  return to_float(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
}
// fp8 becomes fp16, whose conversion is exact for subnormals too: E5M2 is its upper half.
TF_INLINE F load_elements(const std::uint8_t* p, E5M2) {
  const __m128i codes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p));
  return _mm256_cvtph_ps(_mm_unpacklo_epi8(_mm_setzero_si128(), codes));
}
// E4M3 has a bit of exponent less: one place to the right, but for the sign, it is the number over 256, and
// the code of NaN 1.875.
TF_INLINE __m128i f16_of_e4m3(__m128i high_bytes) {
  const __m128i x = _mm_and_si128(_mm_srai_epi16(high_bytes, 1), _mm_set1_epi16(~0x4000));
  const __m128i nan = _mm_cmpeq_epi16(_mm_and_si128(x, _mm_set1_epi16(0x7fff)), _mm_set1_epi16(0x3f80));
  return _mm_or_si128(x, nan);
}
TF_INLINE F load_elements(const std::uint8_t* p, E4M3) {
  const __m128i codes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p));
  return mul(_mm256_cvtph_ps(f16_of_e4m3(_mm_unpacklo_epi8(_mm_setzero_si128(), codes))), set(256.0f));
}

TF_INLINE void store_elements(float* p, F x, F32) { _mm256_storeu_ps(p, x); }
TF_INLINE void store_elements(std::uint16_t* p, F x, F16) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
}
TF_INLINE void store_elements(std::uint16_t* p, F x, BF16) {
  const I bits = as_int(x);
  const I odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), set_int(1));
  I rounded = _mm256_srli_epi32(_mm256_add_epi32(bits, _mm256_add_epi32(set_int(0x7fff), odd)), 16);
  // A NaN must not be rounded into an infinity.
  rounded = as_int(select(_mm256_cmp_ps(x, x, _CMP_UNORD_Q), as_float(set_int(0x7fc0)), as_float(rounded)));
  const I packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(rounded, rounded), 0x08);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_castsi256_si128(packed));
}

// The low byte of each lane, of four vectors.
TF_INLINE void store_low_bytes(void* p, const I (&x)[4]) {
  const I byte = set_int(0xff);
  const I ab = _mm256_packus_epi32(_mm256_and_si256(x[0], byte), _mm256_and_si256(x[1], byte));
  const I cd = _mm256_packus_epi32(_mm256_and_si256(x[2], byte), _mm256_and_si256(x[3], byte));
  // Packing works in halves: a0 b0 c0 d0 a1 b1 c1 d1, four bytes each.
  const I order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  _mm256_storeu_si256(static_cast<I*>(p), _mm256_permutevar8x32_epi32(_mm256_packus_epi16(ab, cd), order));
}

// Rows and columns of an 8 x 8 block change places.
TF_INLINE void transpose(F (&r)[8]) {
  F t[8];
  TF_UNROLL for (int i = 0; i < 4; ++i) {
    t[2 * i] = _mm256_unpacklo_ps(r[2 * i], r[2 * i + 1]);
    t[2 * i + 1] = _mm256_unpackhi_ps(r[2 * i], r[2 * i + 1]);
  }
  TF_UNROLL for (int i = 0; i < 2; ++i) {
    r[4 * i] = _mm256_shuffle_ps(t[4 * i], t[4 * i + 2], 0x44);
    r[4 * i + 1] = _mm256_shuffle_ps(t[4 * i], t[4 * i + 2], 0xee);
    r[4 * i + 2] = _mm256_shuffle_ps(t[4 * i + 1], t[4 * i + 3], 0x44);
    r[4 * i + 3] = _mm256_shuffle_ps(t[4 * i + 1], t[4 * i + 3], 0xee);
  }
  TF_UNROLL for (int i = 0; i < 4; ++i) {
    t[i] = _mm256_permute2f128_ps(r[i], r[4 + i], 0x20);
    t[4 + i] = _mm256_permute2f128_ps(r[i], r[4 + i], 0x31);
  }
  TF_UNROLL for (int i = 0; i < 8; ++i) r[i] = t[i];
}

// The sums over the lanes of four vectors, in parts: join_sums adds them up.
TF_INLINE F sum_of_four(F a, F b, F c, F d) {
  return _mm256_hadd_ps(_mm256_hadd_ps(a, b), _mm256_hadd_ps(c, d));
}
// Lane i: the sum over the lanes of vector i of the kVecLanes that sum_of_four took, four by four.
TF_INLINE F join_sums(const F (&x)[2]) {
  return _mm256_add_ps(_mm256_permute2f128_ps(x[0], x[1], 0x20), _mm256_permute2f128_ps(x[0], x[1], 0x31));
}

// 2 * kVecLanes elements in the order that is cheapest, see split_pair.
template <class E, class T>
TF_INLINE void load_pair(const E* p, F (&x)[2], T) {
  x[0] = load_elements(p, T{});
  x[1] = load_elements(p + kVecLanes, T{});
}
// Even elements, odd elements: one instruction for each vector.
TF_INLINE void load_pair(const std::uint16_t* p, F (&x)[2], BF16) {
  const I pairs = _mm256_loadu_si256(reinterpret_cast<const I*>(p));
  x[0] = as_float(shift_left<16>(pairs));
  x[1] = as_float(_mm256_and_si256(pairs, set_int(static_cast<std::int32_t>(0xffff0000u))));
}
// Over kPairUnit, and the code of NaN as a number: has_nan_code tells.
TF_INLINE void load_pair(const std::uint8_t* p, F (&x)[2], E4M3) {
  const I codes = _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  const I halves = _mm256_and_si256(_mm256_slli_epi16(codes, 7), _mm256_set1_epi16(~0x4000));
  x[0] = _mm256_cvtph_ps(_mm256_castsi256_si128(halves));
  x[1] = _mm256_cvtph_ps(_mm256_extracti128_si256(halves, 1));
}
// From natural order to load_pair's, and back.
template <class T>
TF_INLINE void split_pair(F (&)[2], T) {}
template <class T>
TF_INLINE void join_pair(F (&)[2], T) {}
TF_INLINE void split_pair(F (&x)[2], BF16) {
  const F even = _mm256_shuffle_ps(x[0], x[1], 0x88), odd = _mm256_shuffle_ps(x[0], x[1], 0xdd);
  x[0] = _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(even), 0xd8));
  x[1] = _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(odd), 0xd8));
}
TF_INLINE void join_pair(F (&x)[2], BF16) {
  const F low = _mm256_unpacklo_ps(x[0], x[1]), high = _mm256_unpackhi_ps(x[0], x[1]);
  x[0] = _mm256_permute2f128_ps(low, high, 0x20);
  x[1] = _mm256_permute2f128_ps(low, high, 0x31);
}

// 16-bit whole numbers: a lane is a pair, the sum of a pair's products has 32 bits.
// 2 * kVecLanes neighbours.
TF_INLINE I load_shorts(const std::int8_t* p) {
  return _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
// The pairs (a[i], b[i]) of 2 * kVecLanes columns.
TF_INLINE void load_short_pairs(const std::int8_t* a, const std::int8_t* b, I (&x)[2]) {
  const __m128i first = _mm_loadu_si128(reinterpret_cast<const __m128i*>(a)),
                second = _mm_loadu_si128(reinterpret_cast<const __m128i*>(b));
  x[0] = _mm256_cvtepi8_epi16(_mm_unpacklo_epi8(first, second));
  x[1] = _mm256_cvtepi8_epi16(_mm_unpackhi_epi8(first, second));
}
TF_INLINE I multiply_add_pairs(I sum, I a, I b) {
  I x = add_int(sum, _mm256_madd_epi16(a, b));
  // The compiler, free to reorder sums of whole numbers, would put them off until it runs out of registers.
  asm("" : "+x"(x));
  return x;
}
// kVecLanes numbers, rounded; |x| < 2^15.
TF_INLINE void store_shorts(std::int16_t* p, F x) {
  const I whole = _mm256_cvtps_epi32(x);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p),
                   _mm_packs_epi32(_mm256_castsi256_si128(whole), _mm256_extracti128_si256(whole, 1)));
}
// Lane l is p[l / kEach].
template <int kEach>
TF_INLINE F spread(const float* p) {
  if constexpr (kEach >= kVecLanes) return broadcast(p);
  static_assert(kEach >= kVecLanes || kEach == 4);
  return _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_broadcast_ss(p)), _mm_broadcast_ss(p + 1), 1);
}

// Units of 16 lanes take V in halves (words_fp32.h).
template <class E, class T>
TF_INLINE F load_half_elements(const E* p, T) {
  return load_elements(p, T{});
}
TF_INLINE void store_low_half(float* p, F x) { store_unaligned(p, x); }

TF_INLINE void prefetch(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T0); }
// Into L2, for what is read a while later.
TF_INLINE void prefetch_far(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T1); }

}  // namespace tileformer::TILEFORMER_UNIT
