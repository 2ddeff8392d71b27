// rows_fp32.h for units that multiply pairs of bf16.
#pragma once

namespace tileformer::TILEFORMER_UNIT {

inline constexpr int kRowStep = 2 * kVecLanes;
inline constexpr int kKeyStepWords = 1;
inline constexpr int kRowScoreQueries = kVecRegisters >= 32 ? 4 : 3;
inline constexpr int kRowOutputQueries = kVecRegisters >= 32 ? 8 : 6;

template <class T>
TF_INLINE Words load_key_words(const std::uint16_t* p, int) {
  return load_row_words<T>(p, kRowStep);
}
template <class T>
TF_INLINE void load_value_step(const std::uint16_t* p, std::int64_t stride, Words (&x)[2]) {
  pair_rows(load_row_words<T>(p, kRowStep), load_row_words<T>(p + stride, kRowStep), x);
}
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
