// rows_fp32.h for units that multiply pairs of bf16.
#pragma once

namespace tileformer::TILEFORMER_UNIT {

inline constexpr int kRowStep = 2 * kVecLanes;
inline constexpr int kKeyStepWords = 1;
inline constexpr int kRowScoreQueries = kVecRegisters >= 32 ? 4 : 3;
inline constexpr int kRowOutputQueries = kVecRegisters >= 32 ? 8 : 6;

template <class T>
struct RowProduct {
  using E = std::uint16_t;
  using Vector = Words;
  using Sum = F;
  static constexpr int kKeyWords = kKeyStepWords;
  static constexpr int kValueKeys = 2;
  static constexpr float kUnit = 1;
  static constexpr bool kWhole = false;
  TF_MEMBER static Vector key(const E* p, int) { return load_row_words<T>(p, kRowStep); }
  TF_MEMBER static void value(const E* p, std::int64_t stride, Vector (&x)[2]) {
    pair_rows(load_row_words<T>(p, kRowStep), load_row_words<T>(p + stride, kRowStep), x);
  }
  TF_MEMBER static Vector packed(const Word* p) { return load_words(p); }
  TF_MEMBER static Vector weight(const Word* p) { return broadcast_word(p); }
  TF_MEMBER static Sum nothing() { return zero(); }
  TF_MEMBER static Sum multiply(Sum sum, Vector a, Vector b) { return multiply_add(sum, a, b); }
  TF_MEMBER static F total(Sum sum) { return sum; }
};
template <class T, class TQ>
TF_INLINE void pack_query_step(const std::uint16_t* q, std::int64_t n, float, Word* out) {
  store_words(out, load_row_words<T>(q, n));
}
template <class T>
TF_INLINE void natural_order(F (&x)[2]) {
  unpaired_order(x);
}
TF_INLINE void store_row_probabilities(Word* p, F e, F& sum, F& exact_sum) {
  sum = add(sum, store_rounded(p, e));
  exact_sum = add(exact_sum, e);
}
TF_INLINE void store_row_probabilities(Word* p, F e, F, F& sum, F& exact_sum) {
  store_row_probabilities(p, e, sum, exact_sum);  // bf16 rows have no weights
}

}  // namespace tileformer::TILEFORMER_UNIT
