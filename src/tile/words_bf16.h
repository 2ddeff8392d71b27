// Matrix products by VDPBF16PS: a word is a pair of bf16 that are neighbours along the summed dimension, and
// a lane sums both products in fp32.
//
// Beside a dot product a multiply or FMA costs as much as the dot (they share the ports), a 64-byte store 1.3
// times that; adds, compares, permutes, conversions and loads are free on Zen 4. Hence the cheap exponential.
#pragma once

namespace tileformer::TILEFORMER_UNIT {

using Word = std::uint32_t;                  // what packed operands are made of
using Words = I;                             // a vector of them
inline constexpr int kElementsPerWord = 2;   // neighbours along the summed dimension
inline constexpr bool kScaledQuery = false;  // bf16 Q stays as it is; the exponential takes the scale

TF_INLINE __m512bh as_bf16(I x) { return (__m512bh)x; }
TF_INLINE I from_bf16(__m512bh x) { return (I)x; }

TF_INLINE Words load_words(const Word* p) { return _mm512_load_si512(p); }
TF_INLINE Words broadcast_word(const Word* p) { return _mm512_set1_epi32(static_cast<int>(*p)); }
TF_INLINE void store_words(Word* p, Words x) { _mm512_store_si512(p, x); }
TF_INLINE Words zero_words() { return _mm512_setzero_si512(); }
TF_INLINE F multiply_add(F acc, Words a, Words b) { return _mm512_dpbf16_ps(acc, as_bf16(a), as_bf16(b)); }

// The first n < 32 elements of a row, zeros beyond.
TF_NOINLINE Words load_some_words(const std::uint16_t* p, std::int64_t n) {
  std::uint16_t x[32] = {};
  copy_some<32>(x, p, static_cast<int>(n));
  return _mm512_loadu_si512(x);
}
// Up to 16 words of one row; n elements exist, zeros stand for the rest.
template <class T>
TF_INLINE Words load_row_words(const std::uint16_t* p, std::int64_t n) {
  return TF_LIKELY(n >= 32) ? _mm512_loadu_si512(p) : n <= 0 ? zero_words() : load_some_words(p, n);
}
TF_INLINE Words scaled_query(Words q, F) { return q; }
template <class T>
TF_INLINE Words scaled_row(Words x, F) {
  static_assert(!kIsCode<T>);
  return x;
}
TF_INLINE void transpose_words(Words (&r)[16]) { transpose_int(r); }

alignas(64) inline constexpr std::uint16_t kInterleaveLow[32] = {0,  32, 1,  33, 2,  34, 3,  35, 4,  36, 5,
                                                                 37, 6,  38, 7,  39, 8,  40, 9,  41, 10, 42,
                                                                 11, 43, 12, 44, 13, 45, 14, 46, 15, 47};
alignas(64) inline constexpr std::uint16_t kInterleaveHigh[32] = {16, 48, 17, 49, 18, 50, 19, 51, 20, 52, 21,
                                                                  53, 22, 54, 23, 55, 24, 56, 25, 57, 26, 58,
                                                                  27, 59, 28, 60, 29, 61, 30, 62, 31, 63};
// A vector of 32 whose halves belong to two rows -> pairs.
alignas(64) inline constexpr std::uint16_t kPairHalves[32] = {0,  16, 1,  17, 2,  18, 3,  19, 4,  20, 5,
                                                              21, 6,  22, 7,  23, 8,  24, 9,  25, 10, 26,
                                                              11, 27, 12, 28, 13, 29, 14, 30, 15, 31};

// Two rows of V (null: zeros) as pairs: 32 columns.
template <class T>
TF_INLINE void interleave_rows(const std::uint16_t* const (&row)[2], std::int64_t n, Words (&out)[2]) {
  const Words a = row[0] ? load_row_words<T>(row[0], n) : zero_words();
  const Words b = row[1] ? load_row_words<T>(row[1], n) : zero_words();
  out[0] = _mm512_permutex2var_epi16(a, _mm512_load_si512(kInterleaveLow), b);
  out[1] = _mm512_permutex2var_epi16(a, _mm512_load_si512(kInterleaveHigh), b);
}
// The same of two whole rows in whatever order of columns costs least, and the way back to the natural one.
TF_INLINE void pair_rows(Words a, Words b, Words (&out)[2]) {
  out[0] = _mm512_unpacklo_epi16(a, b);
  out[1] = _mm512_unpackhi_epi16(a, b);
}
// Lane 4 q + i of the low half is column 8 q + i, of the high half 8 q + 4 + i.
alignas(64) inline constexpr std::int32_t kUnpairedLow[16] = {0, 1, 2, 3, 16, 17, 18, 19,
                                                              4, 5, 6, 7, 20, 21, 22, 23};
alignas(64) inline constexpr std::int32_t kUnpairedHigh[16] = {8,  9,  10, 11, 24, 25, 26, 27,
                                                               12, 13, 14, 15, 28, 29, 30, 31};
TF_INLINE void unpaired_order(F (&x)[2]) { permute_pair(x, kUnpairedLow, kUnpairedHigh); }
// Stores the rounded elements and returns them.
TF_INLINE F store_rounded(Word* p, F x) {
  const __m256i bits = (__m256i)_mm512_cvtneps_pbh(x);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), bits);
  return as_float(shift_left<16>(_mm512_cvtepu16_epi32(bits)));
}
// One step of V: 8 columns of two keys, in the low half.
inline constexpr int kStepColumns = 8;
TF_INLINE Words interleave(__m128i a, __m128i b) {
  const __m256i pairs =
      _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_unpacklo_epi16(a, b)), _mm_unpackhi_epi16(a, b), 1);
  return _mm512_castsi256_si512(pairs);
}
template <class T>
TF_INLINE Words load_step(const std::uint16_t* v, std::int64_t stride) {
  return interleave(_mm_loadu_si128(reinterpret_cast<const __m128i*>(v)),
                    _mm_loadu_si128(reinterpret_cast<const __m128i*>(v + stride)));
}
// The same where only n columns and `keys` keys exist, possibly none: zeros beyond.
template <class T>
TF_NOINLINE Words load_step_up_to(const std::uint16_t* v, std::int64_t stride, int keys, std::int64_t n) {
  std::uint16_t x[2][8] = {};
  for (int e = 0; e < min_of(keys, 2); ++e)
    if (n > 0) copy_some<16>(x[e], v + e * stride, static_cast<int>(min_of<std::int64_t>(n, 8)));
  return interleave(_mm_loadu_si128(reinterpret_cast<const __m128i*>(x[0])),
                    _mm_loadu_si128(reinterpret_cast<const __m128i*>(x[1])));
}
TF_INLINE void store_step(Word* p, Words x) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_castsi512_si256(x));
}
// Elements become zero whose byte is not.
TF_INLINE Word kept_elements(Word w, const std::uint8_t* drop) {
  return w & ((drop[0] ? 0 : 0x0000ffffu) | (drop[1] ? 0 : 0xffff0000u));
}

// One step of a product whose steps are pairs of rows (null: zeros): kVecs vectors of columns.
template <class T>
TF_INLINE void load_step_rows(const std::uint16_t* const (&row)[2], std::int64_t n, Words (&out)[kVecs]) {
  static_assert(kVecs == 2);
  interleave_rows<T>(row, n, out);
}
// One row of a tile, its kLanes elements next to each other.
TF_INLINE void store_lane_row(Word* p, const F (&x)[kVecs]) {
  store_words(p, from_bf16(_mm512_cvtne2ps_pbh(x[1], x[0])));
}
// Two rows of a tile as pairs.
TF_INLINE void store_lane_pairs(Word* p, const F (&x)[2][kVecs]) {
  TF_UNROLL for (int j = 0; j < kVecs; ++j)
      store_words(p + j * 16, _mm512_permutexvar_epi16(_mm512_load_si512(kPairHalves),
                                                       from_bf16(_mm512_cvtne2ps_pbh(x[1][j], x[0][j]))));
}
// NaN and infinities become zero.
TF_INLINE Word finite_word(Word w) {
  const Word low = w & 0xffffu, high = w & 0xffff0000u;
  return ((low & 0x7f80u) == 0x7f80u ? 0 : low) | ((high & 0x7f800000u) == 0x7f800000u ? 0 : high);
}

alignas(64) inline constexpr float kLog2Steps[16] = {
    0.69322824f, 0.7239201f, 0.7559708f, 0.78944045f, 0.82439196f, 0.8608909f, 0.89900583f, 0.93880826f,
    0.98037285f, 1.0237776f, 1.0691042f, 1.1164374f,  1.1658664f,  1.2174836f, 1.2713863f,  1.3276753f};
alignas(64) inline constexpr float kExp2Centred[16] = {
    1.000117f, 1.0443959f, 1.0906353f, 1.1389219f, 1.1893462f, 1.2420031f, 1.2969912f, 1.354414f,
    1.414379f, 1.4769989f, 1.5423913f, 1.6106788f, 1.6819896f, 1.7564577f, 1.8342227f, 1.9154307f};

// 2^x, relative error 1.2e-4, a thirtieth of what rounding to bf16 makes of it: two tables of sixteenths,
// 2^(i/16) and its slope, both times 1 + 1.17e-4 to centre the error. One multiply slot beside the scale's
// and scalef's.
TF_INLINE F exp2_score(F x) {
  const Sixteenths s(x);
  const F slope = _mm512_permutexvar_ps(s.index, _mm512_load_ps(kLog2Steps));
  const F base = _mm512_permutexvar_ps(s.index, _mm512_load_ps(kExp2Centred));
  return _mm512_scalef_ps(fma(slope, s.r, base), s.n);
}

// Two key rows as pairs. The sum takes the rounded values, so that the weights add up to exactly one.
inline constexpr bool kScoresInPlace = false;
TF_INLINE void store_probabilities(Word* p, F& sum, const F (&e)[2]) {
  const Words pairs =
      _mm512_permutexvar_epi16(_mm512_load_si512(kPairHalves), from_bf16(_mm512_cvtne2ps_pbh(e[1], e[0])));
  store_words(p, pairs);
  sum = multiply_add(sum, pairs, _mm512_set1_epi32(0x3f803f80));
}
// P already written times an exact power of two: in bf16 as exact as in fp32.
TF_INLINE void rescale_probabilities(Word* p, F factor) {
  const Words x = load_words(p), high_half = _mm512_set1_epi32(static_cast<int>(0xffff0000u));
  const I low = as_int(mul(factor, as_float(shift_left<16>(x))));
  const I high = as_int(mul(factor, as_float(_mm512_and_si512(x, high_half))));
  store_words(p, _mm512_or_si512(_mm512_srli_epi32(low, 16), _mm512_and_si512(high, high_half)));
}
TF_INLINE void drop_probabilities(Word* p, const M (&drop)[2]) {
  Words x = load_words(p);
  x = _mm512_mask_blend_epi32(drop[0], x,
                              _mm512_and_si512(x, _mm512_set1_epi32(static_cast<int>(0xffff0000u))));
  x = _mm512_mask_blend_epi32(drop[1], x, _mm512_and_si512(x, _mm512_set1_epi32(0x0000ffff)));
  store_words(p, x);
}
TF_INLINE float probability(const Word* p, int i) {
  return f32_from_bf16(static_cast<std::uint16_t>(*p >> (16 * i)));
}

}  // namespace tileformer::TILEFORMER_UNIT
