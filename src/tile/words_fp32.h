// Matrix products by fp32 fused multiply-add: a word is one fp32 element. 16-bit inputs become fp32 when
// packed.
#pragma once

namespace tileformer::TILEFORMER_UNIT {

using Word = float;                         // what packed operands are made of
using Words = F;                            // a vector of them
inline constexpr int kElementsPerWord = 1;  // neighbours along the summed dimension
inline constexpr bool kScaledQuery = true;  // the softmax scale is multiplied into Q when it is packed

TF_INLINE Words load_words(const Word* p) { return load(p); }
TF_INLINE Words broadcast_word(const Word* p) { return broadcast(p); }
TF_INLINE void store_words(Word* p, Words x) { store(p, x); }
TF_INLINE Words zero_words() { return zero(); }
TF_INLINE F multiply_add(F acc, Words a, Words b) { return fma(a, b, acc); }

// Up to kVecLanes words of one row; n elements exist, zeros stand for the rest.
template <class T>
TF_INLINE Words load_row_words(const typename T::Element* p, std::int64_t n) {
  return load_up_to<T>(p, n);
}
TF_INLINE Words scaled_query(Words q, F scale) { return mul(q, scale); }
template <class T>
TF_INLINE Words scaled_row(Words x, F scale) {
  return kIsCode<T> ? mul(x, scale) : x;
}
TF_INLINE void transpose_words(Words (&r)[kVecLanes]) { transpose(r); }

// Stores elements as they are multiplied and returns them.
TF_INLINE F store_rounded(Word* p, F x) {
  store(p, x);
  return x;
}

// One step of V: kStepColumns columns, the vector's first lanes.
inline constexpr int kStepColumns = kVecLanes == 16 ? 8 : kVecLanes;
template <class T>
TF_INLINE Words load_step(const typename T::Element* v, std::int64_t) {
  if constexpr (kStepColumns == kVecLanes)
    return load_elements(v, T{});
  else
    return load_half_elements(v, T{});
}
TF_INLINE void store_step(Word* p, Words x) {
  if constexpr (kStepColumns == kVecLanes)
    store_unaligned(p, x);
  else
    store_low_half(p, x);
}
// The same where only n columns and `keys` keys exist, possibly none: zeros beyond.
template <class T>
TF_INLINE Words load_step_up_to(const typename T::Element* v, std::int64_t, int keys, std::int64_t n) {
  if (keys <= 0 || n <= 0) return zero_words();
  return n >= kStepColumns ? load_step<T>(v, 0) : load_some<T>(v, static_cast<int>(n));
}
// NaN and infinities become zero.
TF_INLINE Word finite_word(Word w) {
  return (__builtin_bit_cast(std::uint32_t, w) & 0x7f800000u) == 0x7f800000u ? 0.0f : w;
}

// Elements become zero whose byte is not.
TF_INLINE Word kept_elements(Word w, const std::uint8_t* drop) { return *drop ? 0.0f : w; }

// One step of a product whose steps are rows: kVecs vectors of columns of the row (null: zeros).
template <class T>
TF_INLINE void load_step_rows(const typename T::Element* const (&row)[1], std::int64_t n,
                              Words (&out)[kVecs]) {
  TF_UNROLL for (int j = 0; j < kVecs; ++j) out[j] =
      row[0] ? load_row_words<T>(row[0] + j * kVecLanes, n - j * kVecLanes) : zero_words();
}

// One row of a tile, its kLanes elements next to each other.
TF_INLINE void store_lane_row(Word* p, const F (&x)[kVecs]) {
  TF_UNROLL for (int j = 0; j < kVecs; ++j) store(p + j * kVecLanes, x[j]);
}
// A step of rows, packed. Rows of one element are that already.
TF_INLINE void store_lane_pairs(Word* p, const F (&x)[1][kVecs]) { store_lane_row(p, x[0]); }

// P takes the place of the score that it comes from.
inline constexpr bool kScoresInPlace = true;
TF_INLINE F exp2_score(F x) { return exp2(x); }
TF_INLINE void store_probabilities(Word* p, F& sum, const F (&e)[1]) {
  store(p, e[0]);
  sum = add(sum, e[0]);
}
// P already written times an exact power of two.
TF_INLINE void rescale_probabilities(Word* p, F factor) { store(p, mul(load(p), factor)); }
TF_INLINE void drop_probabilities(Word* p, const M (&drop)[1]) { store(p, select(drop[0], zero(), load(p))); }
TF_INLINE float probability(const Word* p, int) { return *p; }

}  // namespace tileformer::TILEFORMER_UNIT
