// words_bf16.h in the compiler's own vectors: NEON with its bf16 dot product, and any CPU for the emulated
// tile unit. Exact where words_bf16.h is: the same rounding of P, the same layouts.
#pragma once

#include "base/scalar.h"

#if defined(__ARM_FEATURE_BF16)
#include <arm_neon.h>
#endif

namespace tileformer::TILEFORMER_UNIT {

using Word = std::uint32_t;
using Words = I;
inline constexpr int kElementsPerWord = 2;
inline constexpr bool kScaledQuery = false;

TF_INLINE Words load_words(const Word* p) { return *reinterpret_cast<const I*>(p); }
TF_INLINE Words broadcast_word(const Word* p) { return set_int(static_cast<std::int32_t>(*p)); }
TF_INLINE void store_words(Word* p, Words x) { *reinterpret_cast<I*>(p) = x; }
TF_INLINE Words zero_words() { return I{}; }
TF_INLINE F low_half(Words x) { return as_float(x << 16); }
TF_INLINE F high_half(Words x) { return as_float(x & static_cast<std::int32_t>(0xffff0000u)); }
TF_INLINE F multiply_add(F acc, Words a, Words b) {
#if defined(__ARM_FEATURE_BF16)
  static_assert(kVecLanes == 4);
  return reinterpret_cast<F>(vbfdotq_f32(reinterpret_cast<float32x4_t>(acc),
                                         reinterpret_cast<bfloat16x8_t>(a),
                                         reinterpret_cast<bfloat16x8_t>(b)));
#else
  return fma(high_half(a), high_half(b), fma(low_half(a), low_half(b), acc));
#endif
}

// Up to kVecLanes words of one row; n elements exist, zeros stand for the rest.
template <class T>
TF_INLINE Words load_row_words(const std::uint16_t* p, std::int64_t n) {
  std::uint16_t x[2 * kVecLanes] = {};
  if (TF_LIKELY(n >= 2 * kVecLanes))
    __builtin_memcpy(x, p, sizeof x);
  else
    for (std::int64_t i = 0; i < n; ++i) x[i] = p[i];
  return read<I>(x);
}
TF_INLINE Words scaled_query(Words q, F) { return q; }
template <class T>
TF_INLINE Words scaled_row(Words x, F) {
  static_assert(!kIsCode<T>);
  return x;
}
TF_INLINE void transpose_words(Words (&r)[kVecLanes]) {
  F t[kVecLanes];
  TF_UNROLL for (int i = 0; i < kVecLanes; ++i) t[i] = as_float(r[i]);
  transpose(t);
  TF_UNROLL for (int i = 0; i < kVecLanes; ++i) r[i] = as_int(t[i]);
}

// Two rows of V (null: zeros) as pairs: 2 * kVecLanes columns.
template <class T>
TF_INLINE void interleave_rows(const std::uint16_t* const (&row)[2], std::int64_t n, Words (&out)[2]) {
  std::uint16_t pair[2][2 * kVecLanes];
  for (int e = 0; e < 2; ++e) {
    const Words x = row[e] ? load_row_words<T>(row[e], n) : zero_words();
    __builtin_memcpy(pair[e], &x, sizeof x);
  }
  TF_UNROLL for (int h = 0; h < 2; ++h) TF_UNROLL for (int l = 0; l < kVecLanes; ++l) {
    const int d = h * kVecLanes + l;
    out[h][l] = static_cast<std::int32_t>(pair[0][d] | std::uint32_t{pair[1][d]} << 16);
  }
}
// The same of two whole rows; other units choose an order of columns that is cheaper for them.
TF_INLINE void pair_rows(Words a, Words b, Words (&out)[2]) {
  typedef std::uint16_t Halves __attribute__((vector_size(4 * kVecLanes)));
  const Halves x = reinterpret_cast<Halves>(a), y = reinterpret_cast<Halves>(b);
  TF_UNROLL for (int h = 0; h < 2; ++h) TF_UNROLL for (int l = 0; l < kVecLanes; ++l) {
    const int d = h * kVecLanes + l;
    out[h][l] = static_cast<std::int32_t>(x[d] | std::uint32_t{y[d]} << 16);
  }
}
TF_INLINE void unpaired_order(F (&)[2]) {}
// Stores the rounded elements and returns them.
TF_INLINE F store_rounded(Word* p, F x) {
  const BitsOf16 bits = to_bf16(x);
  __builtin_memcpy(p, &bits, sizeof bits);
  return as_float(__builtin_convertvector(bits, I) << 16);
}
// One step of V: kStepColumns columns of two keys.
inline constexpr int kStepColumns = kVecLanes;
template <class T>
TF_INLINE Words load_step(const std::uint16_t* v, std::int64_t stride) {
  I x;
  TF_UNROLL for (int d = 0; d < kVecLanes; ++d) x[d] =
      static_cast<std::int32_t>(v[d] | std::uint32_t{v[stride + d]} << 16);
  return x;
}
// The same where only n columns and `keys` keys exist, possibly none: zeros beyond.
template <class T>
TF_NOINLINE Words load_step_up_to(const std::uint16_t* v, std::int64_t stride, int keys, std::int64_t n) {
  I x = {};
  for (int d = 0; d < min_of<std::int64_t>(n, kVecLanes) && keys > 0; ++d)
    x[d] = static_cast<std::int32_t>(v[d] | (keys > 1 ? std::uint32_t{v[stride + d]} << 16 : 0));
  return x;
}
TF_INLINE void store_step(Word* p, Words x) { __builtin_memcpy(p, &x, sizeof x); }
// NaN and infinities become zero.
TF_INLINE Word finite_word(Word w) {
  const Word low = w & 0xffffu, high = w & 0xffff0000u;
  return ((low & 0x7f80u) == 0x7f80u ? 0 : low) | ((high & 0x7f800000u) == 0x7f800000u ? 0 : high);
}

// Elements become zero whose byte is not.
TF_INLINE Word kept_elements(Word w, const std::uint8_t* drop) {
  return w & ((drop[0] ? 0 : 0x0000ffffu) | (drop[1] ? 0 : 0xffff0000u));
}

// One step of a product whose steps are pairs of rows (null: zeros): kVecs vectors of columns.
template <class T>
TF_INLINE void load_step_rows(const std::uint16_t* const (&row)[2], std::int64_t n, Words (&out)[kVecs]) {
  static_assert(kVecs % 2 == 0);
  for (int j = 0; j < kVecs; j += 2) {
    const std::uint16_t* at[2];
    for (int e = 0; e < 2; ++e) at[e] = row[e] && n > j * kVecLanes ? row[e] + j * kVecLanes : nullptr;
    Words pair[2];
    interleave_rows<T>(at, n - j * kVecLanes, pair);
    out[j] = pair[0];
    out[j + 1] = pair[1];
  }
}

inline constexpr bool kScoresInPlace = false;
TF_INLINE F exp2_score(F x) { return exp2(x); }
TF_INLINE I bf16_bits(F x) { return __builtin_convertvector(to_bf16(x), I); }
// One row of a tile, its kLanes elements next to each other.
TF_INLINE void store_lane_row(Word* p, const F (&x)[kVecs]) {
  std::uint16_t row[kVecs * kVecLanes];
  TF_UNROLL for (int j = 0; j < kVecs; ++j) {
    const I bits = bf16_bits(x[j]);
    TF_UNROLL for (int l = 0; l < kVecLanes; ++l) row[j * kVecLanes + l] =
        static_cast<std::uint16_t>(bits[l]);
  }
  __builtin_memcpy(p, row, sizeof row);
}
// Two rows of a tile as pairs.
TF_INLINE void store_lane_pairs(Word* p, const F (&x)[2][kVecs]) {
  TF_UNROLL for (int j = 0; j < kVecs; ++j)
      store_words(p + j * kVecLanes, bf16_bits(x[0][j]) | bf16_bits(x[1][j]) << 16);
}
TF_INLINE void store_probabilities(Word* p, F& sum, const F (&e)[2]) {
  const Words pairs = bf16_bits(e[0]) | bf16_bits(e[1]) << 16;
  store_words(p, pairs);
  sum = sum + (low_half(pairs) + high_half(pairs));
}
TF_INLINE void rescale_probabilities(Word* p, F factor) {
  const Words x = load_words(p);
  store_words(p, bf16_bits(low_half(x) * factor) | bf16_bits(high_half(x) * factor) << 16);
}
TF_INLINE void drop_probabilities(Word* p, const M (&drop)[2]) {
  store_words(p, load_words(p) & ~((drop[0] & 0xffff) | (drop[1] & static_cast<std::int32_t>(0xffff0000u))));
}
TF_INLINE float probability(const Word* p, int i) {
  return f32_from_bf16(static_cast<std::uint16_t>(*p >> (16 * i)));
}

}  // namespace tileformer::TILEFORMER_UNIT
