// Vector words for AVX-512 (F, BW, DQ, VL): 16 lanes of fp32.
#pragma once

#ifdef TILEFORMER_USE_SIMDE
#include "tile/simde_avx512.h"
#else
#include <immintrin.h>
#endif

#include "tile/config.h"

namespace tileformer::TILEFORMER_UNIT {

inline constexpr int kVecLanes = 16;
inline constexpr int kVecRegisters = 32;
using F = __m512;
using I = __m512i;
using M = __mmask16;

TF_INLINE F load(const float* p) { return _mm512_load_ps(p); }
TF_INLINE F load_unaligned(const float* p) { return _mm512_loadu_ps(p); }
TF_INLINE void store(float* p, F x) { _mm512_store_ps(p, x); }
TF_INLINE void store_unaligned(float* p, F x) { _mm512_storeu_ps(p, x); }
TF_INLINE F zero() { return _mm512_setzero_ps(); }
TF_INLINE F set(float x) { return _mm512_set1_ps(x); }
TF_INLINE F broadcast(const float* p) { return _mm512_set1_ps(*p); }
TF_INLINE F add(F a, F b) { return _mm512_add_ps(a, b); }
// x as it was rounded: the compiler may join a multiply and an add into one fma otherwise.
TF_INLINE F rounded(F x) {
#if defined(TILEFORMER_USE_SIMDE)
  asm("" : "+m"(x));
#else
  asm("" : "+v"(x));
#endif
  return x;
}
TF_INLINE F sub(F a, F b) { return _mm512_sub_ps(a, b); }
TF_INLINE F mul(F a, F b) { return _mm512_mul_ps(a, b); }
TF_INLINE F div(F a, F b) { return _mm512_div_ps(a, b); }
TF_INLINE F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
// The second operand where either is NaN.
TF_INLINE F max(F a, F b) { return _mm512_max_ps(a, b); }
TF_INLINE F min(F a, F b) { return _mm512_min_ps(a, b); }
TF_INLINE F abs(F x) { return _mm512_abs_ps(x); }
TF_INLINE F round(F x) { return _mm512_roundscale_ps(x, 0); }

TF_INLINE F as_float(I x) { return _mm512_castsi512_ps(x); }
TF_INLINE I as_int(F x) { return _mm512_castps_si512(x); }
TF_INLINE I load_int(const std::int32_t* p) { return _mm512_load_si512(p); }
TF_INLINE I set_int(std::int32_t x) { return _mm512_set1_epi32(x); }
TF_INLINE I add_int(I a, I b) { return _mm512_add_epi32(a, b); }
TF_INLINE I sub_int(I a, I b) { return _mm512_sub_epi32(a, b); }
template <int kBits>
TF_INLINE I shift_left(I x) {
  return _mm512_slli_epi32(x, kBits);
}
template <int kBits>
TF_INLINE I shift_right_arithmetic(I x) {
  return _mm512_srai_epi32(x, kBits);
}
TF_INLINE F to_float(I x) { return _mm512_cvtepi32_ps(x); }

TF_INLINE M greater(F a, F b) { return _mm512_cmp_ps_mask(a, b, _CMP_GT_OQ); }
TF_INLINE M equal(F a, F b) { return _mm512_cmp_ps_mask(a, b, _CMP_EQ_OQ); }
TF_INLINE M greater_int(I a, I b) { return _mm512_cmpgt_epi32_mask(a, b); }
TF_INLINE M both(M a, M b) { return static_cast<M>(a & b); }
TF_INLINE M either(M a, M b) { return static_cast<M>(a | b); }
TF_INLINE bool any(M m) { return m != 0; }
TF_INLINE bool all(M m) { return m == 0xffff; }
// The lowest lane that is set; one is.
TF_INLINE int first_set(M m) { return __builtin_ctz(m); }
TF_INLINE F select(M m, F yes, F no) { return _mm512_mask_blend_ps(m, no, yes); }
// Lanes whose byte is not zero.
TF_INLINE M nonzero_bytes(const std::uint8_t* p) {
  const __m128i x = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return static_cast<M>(~_mm_movemask_epi8(_mm_cmpeq_epi8(x, _mm_setzero_si128())));
}

alignas(64) inline constexpr float kExp2Sixteenths[16] = {
    1.0f,       1.0442737f, 1.0905077f, 1.1387886f, 1.1892071f, 1.2418578f, 1.2968396f, 1.3542556f,
    1.4142135f, 1.4768262f, 1.5422108f, 1.6104903f, 1.6817929f, 1.7562522f, 1.8340081f, 1.9152066f};

// What is 16 table entries away from x: x = n + r, n in sixteenths. The clamp keeps -inf - (-inf) out.
struct Sixteenths {
  F n, r;
  I index;
  TF_MEMBER explicit Sixteenths(F x) {
    x = max(set(-200.0f), x);
    const F magic = set(786432.0f);  // 1.5 * 2^19: one unit in the last place is 1/16
    const F t = add(x, magic);
    n = sub(t, magic);
    r = sub(x, n);
    index = as_int(t);
  }
};

// 2^x for x < 127, relative error 2e-7; 0 from -150 down (-inf too); NaN stays NaN. scalef ignores the
// fraction of n, which the table holds.
TF_INLINE F exp2(F x) {
  const Sixteenths s(x);
  const F table = _mm512_permutexvar_ps(s.index, _mm512_load_ps(kExp2Sixteenths));
  F p = fma(s.r, set(0.0555041f), set(0.24022651f));
  p = mul(fma(p, s.r, set(0.69314718f)), s.r);
  return _mm512_scalef_ps(fma(p, table, table), s.n);
}
// 2^n for a whole n < 128, exact.
TF_INLINE F exp2_whole(F n) { return _mm512_scalef_ps(set(1.0f), n); }

TF_INLINE F load_elements(const float* p, F32) { return _mm512_loadu_ps(p); }
TF_INLINE F load_elements(const std::uint16_t* p, F16) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
TF_INLINE F load_elements(const std::uint16_t* p, BF16) {
  return as_float(
      shift_left<16>(_mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))));
}
TF_INLINE F load_elements(const std::int8_t* p, I8) {
  return to_float(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
}
// fp8 becomes fp16, whose conversion is exact for subnormals too: E5M2 is its upper half.
TF_INLINE __m256i codes_in_high_bytes(const std::uint8_t* p) {
  return _mm256_slli_epi16(_mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))), 8);
}
TF_INLINE F load_elements(const std::uint8_t* p, E5M2) { return _mm512_cvtph_ps(codes_in_high_bytes(p)); }
// E4M3 has a bit of exponent less: one place to the right, but for the sign, it is the number over 256, and
// the code of NaN 1.875.
TF_INLINE __m256i f16_of_e4m3(__m256i high_bytes) {
  const __m256i x = _mm256_and_si256(_mm256_srai_epi16(high_bytes, 1), _mm256_set1_epi16(~0x4000));
  const __m256i nan =
      _mm256_cmpeq_epi16(_mm256_and_si256(x, _mm256_set1_epi16(0x7fff)), _mm256_set1_epi16(0x3f80));
  return _mm256_or_si256(x, nan);
}
TF_INLINE F load_elements(const std::uint8_t* p, E4M3) {
  return mul(_mm512_cvtph_ps(f16_of_e4m3(codes_in_high_bytes(p))), set(256.0f));
}

TF_INLINE void store_elements(float* p, F x, F32) { _mm512_storeu_ps(p, x); }
TF_INLINE void store_elements(std::uint16_t* p, F x, F16) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
}
TF_INLINE void store_elements(std::uint16_t* p, F x, BF16) {
  const I bits = as_int(x);
  const I odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), set_int(1));
  I rounded = _mm512_srli_epi32(add_int(bits, add_int(set_int(0x7fff), odd)), 16);
  // A NaN must not be rounded into an infinity.
  rounded = _mm512_mask_blend_epi32(equal(x, x), set_int(0x7fc0), rounded);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(rounded));
}

// The low byte of each lane, of four vectors.
TF_INLINE void store_low_bytes(void* p, const I (&x)[4]) {
  TF_UNROLL for (int i = 0; i < 4; ++i)
      _mm_storeu_si128(static_cast<__m128i*>(p) + i, _mm512_cvtepi32_epi8(x[i]));
}

// Rows and columns of a 16 x 16 block of 32-bit elements change places.
TF_INLINE void transpose_int(I (&r)[16]) {
  I t[16];
  TF_UNROLL for (int i = 0; i < 8; ++i) {
    t[2 * i] = _mm512_unpacklo_epi32(r[2 * i], r[2 * i + 1]);
    t[2 * i + 1] = _mm512_unpackhi_epi32(r[2 * i], r[2 * i + 1]);
  }
  TF_UNROLL for (int i = 0; i < 4; ++i) {
    r[4 * i] = _mm512_unpacklo_epi64(t[4 * i], t[4 * i + 2]);
    r[4 * i + 1] = _mm512_unpackhi_epi64(t[4 * i], t[4 * i + 2]);
    r[4 * i + 2] = _mm512_unpacklo_epi64(t[4 * i + 1], t[4 * i + 3]);
    r[4 * i + 3] = _mm512_unpackhi_epi64(t[4 * i + 1], t[4 * i + 3]);
  }
  TF_UNROLL for (int i = 0; i < 4; ++i) {
    t[i] = _mm512_shuffle_i32x4(r[i], r[4 + i], 0x88);
    t[4 + i] = _mm512_shuffle_i32x4(r[i], r[4 + i], 0xdd);
    t[8 + i] = _mm512_shuffle_i32x4(r[8 + i], r[12 + i], 0x88);
    t[12 + i] = _mm512_shuffle_i32x4(r[8 + i], r[12 + i], 0xdd);
  }
  TF_UNROLL for (int i = 0; i < 4; ++i) {
    r[i] = _mm512_shuffle_i32x4(t[i], t[8 + i], 0x88);
    r[8 + i] = _mm512_shuffle_i32x4(t[i], t[8 + i], 0xdd);
    r[4 + i] = _mm512_shuffle_i32x4(t[4 + i], t[12 + i], 0x88);
    r[12 + i] = _mm512_shuffle_i32x4(t[4 + i], t[12 + i], 0xdd);
  }
}
TF_INLINE void transpose(F (&r)[16]) {
  I t[16];
  TF_UNROLL for (int i = 0; i < 16; ++i) t[i] = as_int(r[i]);
  transpose_int(t);
  TF_UNROLL for (int i = 0; i < 16; ++i) r[i] = as_float(t[i]);
}

// The sums over the lanes of four vectors, in parts: join_sums adds them up.
TF_INLINE F sum_of_four(F a, F b, F c, F d) {
  const F ab = add(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b)),
          cd = add(_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d));
  return add(_mm512_shuffle_ps(ab, cd, 0x44), _mm512_shuffle_ps(ab, cd, 0xee));
}
// Lane i: the sum over the lanes of vector i of the kVecLanes that sum_of_four took, four by four.
TF_INLINE F join_sums(const F (&x)[4]) {
  const F low = add(_mm512_shuffle_f32x4(x[0], x[1], 0x44), _mm512_shuffle_f32x4(x[0], x[1], 0xee)),
          high = add(_mm512_shuffle_f32x4(x[2], x[3], 0x44), _mm512_shuffle_f32x4(x[2], x[3], 0xee));
  return add(_mm512_shuffle_f32x4(low, high, 0x88), _mm512_shuffle_f32x4(low, high, 0xdd));
}

// 2 * kVecLanes elements in the order that is cheapest, see split_pair.
template <class E, class T>
TF_INLINE void load_pair(const E* p, F (&x)[2], T) {
  x[0] = load_elements(p, T{});
  x[1] = load_elements(p + kVecLanes, T{});
}
// Even elements, odd elements: one instruction for each vector.
TF_INLINE void load_pair(const std::uint16_t* p, F (&x)[2], BF16) {
  const I pairs = _mm512_loadu_si512(p);
  x[0] = as_float(shift_left<16>(pairs));
  x[1] = as_float(_mm512_and_si512(pairs, set_int(static_cast<std::int32_t>(0xffff0000u))));
}
// Over kPairUnit, and the code of NaN as a number: has_nan_code tells.
TF_INLINE void load_pair(const std::uint8_t* p, F (&x)[2], E4M3) {
  TF_UNROLL for (int i = 0; i < 2; ++i) {
    const __m256i codes = _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 16 * i)));
    x[i] = _mm512_cvtph_ps(_mm256_and_si256(_mm256_slli_epi16(codes, 7), _mm256_set1_epi16(~0x4000)));
  }
}
// From natural order to load_pair's, and back.
template <class T>
TF_INLINE void split_pair(F (&)[2], T) {}
template <class T>
TF_INLINE void join_pair(F (&)[2], T) {}
alignas(64) inline constexpr std::int32_t kEvenOfPair[16] = {0,  2,  4,  6,  8,  10, 12, 14,
                                                             16, 18, 20, 22, 24, 26, 28, 30};
alignas(64) inline constexpr std::int32_t kOddOfPair[16] = {1,  3,  5,  7,  9,  11, 13, 15,
                                                            17, 19, 21, 23, 25, 27, 29, 31};
alignas(64) inline constexpr std::int32_t kLowOfPair[16] = {0, 16, 1, 17, 2, 18, 3, 19,
                                                            4, 20, 5, 21, 6, 22, 7, 23};
alignas(64) inline constexpr std::int32_t kHighOfPair[16] = {8,  24, 9,  25, 10, 26, 11, 27,
                                                             12, 28, 13, 29, 14, 30, 15, 31};
TF_INLINE void permute_pair(F (&x)[2], const std::int32_t* first, const std::int32_t* second) {
  const F a = _mm512_permutex2var_ps(x[0], load_int(first), x[1]);
  x[1] = _mm512_permutex2var_ps(x[0], load_int(second), x[1]);
  x[0] = a;
}
TF_INLINE void split_pair(F (&x)[2], BF16) { permute_pair(x, kEvenOfPair, kOddOfPair); }
TF_INLINE void join_pair(F (&x)[2], BF16) { permute_pair(x, kLowOfPair, kHighOfPair); }

// 16-bit whole numbers: a lane is a pair, the sum of a pair's products has 32 bits.
// 2 * kVecLanes neighbours.
TF_INLINE I load_shorts(const std::int8_t* p) {
  return _mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
// The pairs (a[i], b[i]) of 2 * kVecLanes columns.
TF_INLINE void load_short_pairs(const std::int8_t* a, const std::int8_t* b, I (&x)[2]) {
  TF_UNROLL for (int i = 0; i < 2; ++i) {
    const __m128i first = _mm_loadu_si128(reinterpret_cast<const __m128i*>(a + 16 * i)),
                  second = _mm_loadu_si128(reinterpret_cast<const __m128i*>(b + 16 * i));
    x[i] = _mm512_cvtepi8_epi16(_mm256_inserti128_si256(
        _mm256_castsi128_si256(_mm_unpacklo_epi8(first, second)), _mm_unpackhi_epi8(first, second), 1));
  }
}
TF_INLINE I multiply_add_pairs(I sum, I a, I b) {
  I x = add_int(sum, _mm512_madd_epi16(a, b));
#if !defined(TILEFORMER_USE_SIMDE)
  // The compiler, free to reorder sums of whole numbers, would put them off until it runs out of registers.
  asm("" : "+v"(x));
#endif
  return x;
}
// kVecLanes numbers, rounded; |x| < 2^15.
TF_INLINE void store_shorts(std::int16_t* p, F x) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(_mm512_cvtps_epi32(x)));
}
// Lane l is p[l / kEach].
template <int kEach>
TF_INLINE F spread(const float* p) {
  static_assert(kEach == 4 || kEach == 8 || kEach >= kVecLanes);
  if constexpr (kEach >= kVecLanes) return broadcast(p);
  const __m256 low = _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_broadcast_ss(p)),
                                          _mm_broadcast_ss(p + (kEach == 4)), 1),
               high = _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_broadcast_ss(p + (kEach == 4 ? 2 : 1))),
                                           _mm_broadcast_ss(p + (kEach == 4 ? 3 : 1)), 1);
  return _mm512_insertf32x8(_mm512_castps256_ps512(low), high, 1);
}

// Eight elements in the low half.
TF_INLINE F load_half_elements(const float* p, F32) { return _mm512_castps256_ps512(_mm256_loadu_ps(p)); }
TF_INLINE F load_half_elements(const std::uint16_t* p, F16) {
  return _mm512_castps256_ps512(_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
}
TF_INLINE F load_half_elements(const std::uint16_t* p, BF16) {
  const __m256i x = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  return _mm512_castps256_ps512(_mm256_castsi256_ps(_mm256_slli_epi32(x, 16)));
}
TF_INLINE F load_half_elements(const std::int8_t* p, I8) {
  const __m128i codes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p));
  return _mm512_castps256_ps512(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(codes)));
}
TF_INLINE __m128i half_codes_in_high_bytes(const std::uint8_t* p) {
  return _mm_unpacklo_epi8(_mm_setzero_si128(), _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
}
TF_INLINE F load_half_elements(const std::uint8_t* p, E5M2) {
  return _mm512_castps256_ps512(_mm256_cvtph_ps(half_codes_in_high_bytes(p)));
}
TF_INLINE F load_half_elements(const std::uint8_t* p, E4M3) {
  const __m256i halves = f16_of_e4m3(_mm256_castsi128_si256(half_codes_in_high_bytes(p)));
  const __m256 x = _mm256_cvtph_ps(_mm256_castsi256_si128(halves));
  return _mm512_castps256_ps512(_mm256_mul_ps(x, _mm256_set1_ps(256.0f)));
}
TF_INLINE void store_low_half(float* p, F x) { _mm256_storeu_ps(p, _mm512_castps512_ps256(x)); }

TF_INLINE void prefetch(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T0); }
// Into L2, for what is read a while later.
TF_INLINE void prefetch_far(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T1); }

}  // namespace tileformer::TILEFORMER_UNIT
