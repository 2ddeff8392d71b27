// Rows of K and V as operands where they lie, for few queries: a row's elements are the lanes, so that scores
// are sums over lanes and outputs are rows. For units that multiply fp32.
#pragma once

namespace tileformer::TILEFORMER_UNIT {

inline constexpr int kRowStep = 2 * kVecLanes;  // elements of a row that are taken at once
inline constexpr int kKeyStepWords = 2;         // vectors that they become
inline constexpr int kRowScoreQueries = kVecRegisters >= 32 ? 4 : 3;   // x 4 keys of accumulators
inline constexpr int kRowOutputQueries = kVecRegisters >= 32 ? 8 : 6;  // x 2 vectors of accumulators

// Vector w of a step.
template <class T>
TF_INLINE Words load_key_words(const typename T::Element* p, int w) {
  F x[2];
  load_pair(p, x, T{});
  return x[w];
}
// Columns of kElementsPerWord keys, `stride` apart.
template <class T>
TF_INLINE void load_value_step(const typename T::Element* p, std::int64_t, Words (&x)[2]) {
  load_pair(p, x, T{});
}

// kRowStep elements of a query (n exist) as the counterpart of a key step of T, times the scale. TQ: how the
// query is stored.
template <class T, class TQ>
TF_INLINE void pack_query_step(const typename TQ::Element* q, std::int64_t n, float scale, Word* out) {
  F x[2] = {load_up_to<TQ>(q, n), n > kVecLanes ? load_up_to<TQ>(q + kVecLanes, n - kVecLanes) : zero()};
  split_pair(x, T{});
  TF_UNROLL for (int i = 0; i < 2; ++i) store(out + i * kVecLanes, mul(x[i], set(scale)));
}
// kRowStep columns of O as value steps of T leave them, in natural order.
template <class T>
TF_INLINE void natural_order(F (&x)[2]) {
  join_pair(x, T{});
}

// Probabilities of kVecLanes keys of one row times `weight`, and their sums: as they are multiplied (without
// the weight), and before they were rounded to 16 bits.
TF_INLINE void store_row_probabilities(Word* p, F e, F weight, F& sum, F&) {
  store(p, mul(e, weight));
  sum = add(sum, e);
}
TF_INLINE void store_row_probabilities(Word* p, F e, F& sum, F&) {
  store(p, e);
  sum = add(sum, e);
}

}  // namespace tileformer::TILEFORMER_UNIT
