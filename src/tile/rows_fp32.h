// Rows of K and V as operands where they lie, for few queries: a row's elements are the lanes, so that scores
// are sums over lanes and outputs are rows. For units that multiply fp32.
#pragma once

namespace tileformer::TILEFORMER_UNIT {

inline constexpr int kRowStep = 2 * kVecLanes;  // elements of a row that are taken at once
inline constexpr int kKeyStepWords = 2;         // vectors that they become
inline constexpr int kRowScoreQueries = kVecRegisters >= 32 ? 4 : 3;   // x 4 keys of accumulators
inline constexpr int kRowOutputQueries = kVecRegisters >= 32 ? 8 : 6;  // x 2 vectors of accumulators

// What load_pair leaves to the scale of the row.
template <class T>
inline constexpr float kPairUnit = 1;
template <>
inline constexpr float kPairUnit<E4M3> = 256;

// Whether one of n codes is E4M3's NaN.
TF_INLINE bool has_nan_code(const std::uint8_t* p, std::int64_t n) {
  constexpr std::uint64_t kLow = 0x0101010101010101, kHigh = 0x8080808080808080;
  std::uint64_t found = 0;
  std::int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    std::uint64_t codes;
    __builtin_memcpy(&codes, p + i, 8);
    found |= ((codes & ~kHigh) + kLow) & kHigh;  // 0x7f and nothing else carries into the sign
  }
  for (; i < n; ++i) found |= (p[i] & 0x7f) == 0x7f;
  return found != 0;
}

// How rows of T are multiplied: here in fp32.
template <class T>
struct RowProduct {
  using E = typename T::Element;
  using Vector = Words;  // of a row or of packed operands
  using Sum = F;
  static constexpr int kKeyWords = kKeyStepWords;  // vectors of a step
  static constexpr int kValueKeys = 1;             // keys that a step of V takes together
  static constexpr float kUnit = kPairUnit<T>;     // of key() and value()
  static constexpr bool kWhole = false;            // whole numbers, which want a scale for each query
  // Vector w of a step.
  TF_MEMBER static Vector key(const E* p, int w) {
    F x[2];
    load_pair(p, x, T{});
    return x[w];
  }
  // Columns of kValueKeys keys, `stride` apart.
  TF_MEMBER static void value(const E* p, std::int64_t, Vector (&x)[2]) { load_pair(p, x, T{}); }
  TF_MEMBER static Vector packed(const Word* p) { return load_words(p); }
  TF_MEMBER static Vector weight(const Word* p) { return broadcast_word(p); }
  TF_MEMBER static Sum nothing() { return zero(); }
  TF_MEMBER static Sum multiply(Sum sum, Vector a, Vector b) { return multiply_add(sum, a, b); }
  TF_MEMBER static F total(Sum sum) { return sum; }
};

// int8 in whole numbers: queries and probabilities are rounded to 15 bits of the largest one, sums are exact.
// Twice as fast as fp32, which has to convert every element of K and V. (A byte for them would be four times
// as fast with VNNI, and leave 4 to 5 % of error.)
template <>
struct RowProduct<I8> {
  using E = std::int8_t;
  using Vector = I;
  using Sum = I;
  static constexpr int kKeyWords = 1;
  static constexpr int kValueKeys = 2;
  static constexpr float kUnit = 1;
  static constexpr bool kWhole = true;
  TF_MEMBER static Vector key(const E* p, int) { return load_shorts(p); }
  TF_MEMBER static void value(const E* p, std::int64_t stride, Vector (&x)[2]) {
    load_short_pairs(p, p + stride, x);
  }
  TF_MEMBER static Vector packed(const Word* p) { return load_int(reinterpret_cast<const std::int32_t*>(p)); }
  TF_MEMBER static Vector weight(const Word* p) { return as_int(broadcast(p)); }
  TF_MEMBER static Sum nothing() { return set_int(0); }
  TF_MEMBER static Sum multiply(Sum sum, Vector a, Vector b) { return multiply_add_pairs(sum, a, b); }
  TF_MEMBER static F total(Sum sum) { return to_float(sum); }
};

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
