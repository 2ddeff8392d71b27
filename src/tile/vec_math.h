// Functions of vectors made of the unit's words; included after vec_*.h.
#pragma once

namespace tileformer::TILEFORMER_UNIT {

inline constexpr float kLog2E = 1.44269504f;
inline constexpr float kLn2 = 0.69314718f;
inline constexpr float kInfinity = __builtin_inff();
inline constexpr float kNaN = __builtin_nanf("");
inline constexpr float kLargestShort = 32767;  // of 16-bit whole numbers

// log2(x) for normal x > 0, absolute error 1e-7 beside |log2 x| * 6e-8. The mantissa is brought to [2/3, 4/3)
// and log(m) taken as 2 artanh((m - 1) / (m + 1)), whose series in s^2 <= 0.04 needs five terms.
TF_INLINE F log2(F x) {
  const I bits = as_int(x);
  const I exponent = shift_right_arithmetic<23>(sub_int(bits, set_int(0x3f2aaaab)));
  const F m = as_float(sub_int(bits, shift_left<23>(exponent)));
  const F s = div(sub(m, set(1.0f)), add(m, set(1.0f))), z = mul(s, s);
  F p = fma(z, set(2 * kLog2E / 9), set(2 * kLog2E / 7));
  p = fma(p, z, set(2 * kLog2E / 5));
  p = fma(p, z, set(2 * kLog2E / 3));
  p = fma(p, z, set(2 * kLog2E));
  return fma(p, s, to_float(exponent));
}

// tanh(x), relative error 1e-7 (the quotient itself 2.2e-8, a weighted least-squares fit over |x| <= 9); NaN
// stays NaN.
TF_INLINE F tanh(F x) {
  x = min(set(9.0f), max(set(-9.0f), x));
  const F z = mul(x, x);
  F p = fma(z, set(1.3372034e-8f), set(2.0622561e-5f));
  p = fma(p, z, set(3.4964445e-3f));
  p = fma(p, z, set(1.3381758e-1f));
  p = fma(p, z, set(9.9999998e-1f));
  F q = fma(z, set(7.7839525e-7f), set(3.2870098e-4f));
  q = fma(q, z, set(2.5880276e-2f));
  q = fma(q, z, set(4.6715074e-1f));
  q = fma(q, z, set(1.0f));
  return mul(x, div(p, q));
}

// exp(x - m). The difference is taken first: scaled by log2(e) apart, large x would lose it to rounding.
TF_INLINE F exp_minus(F x, F m) { return exp2(mul(sub(x, m), set(kLog2E))); }

// 1 / (1 + exp(-x)); 0 where exp(-x) would overflow, NaN stays NaN.
TF_INLINE F sigmoid(F x) {
  const F t = mul(x, set(-kLog2E));
  const F e = exp2(min(set(126.0f), t));
  return select(greater(t, set(126.0f)), zero(), div(set(1.0f), add(set(1.0f), e)));
}

TF_INLINE float first_lane(F x) {
  alignas(64) float lanes[kVecLanes];
  store(lanes, x);
  return lanes[0];
}
TF_INLINE float sum_of_lanes(F x) {
  alignas(64) float lanes[kVecLanes];
  store(lanes, x);
  TF_UNROLL for (int half = kVecLanes / 2; half > 0; half /= 2) for (int l = 0; l < half; ++l) lanes[l] +=
      lanes[l + half];
  return lanes[0];
}
// x is free of NaN.
TF_INLINE float max_of_lanes(F x) {
  alignas(64) float lanes[kVecLanes];
  store(lanes, x);
  TF_UNROLL for (int half = kVecLanes / 2; half > 0; half /= 2) for (int l = 0; l < half; ++l) lanes[l] =
      max_of(lanes[l], lanes[l + half]);
  return lanes[0];
}

// n < kBelow elements (a power of two), in pieces of halving size.
template <int kBelow, class E>
TF_INLINE void copy_some(E* to, const E* from, int n) {
  int at = 0;
  TF_UNROLL for (int piece = kBelow / 2; piece > 0; piece /= 2) if (n & piece) {
    __builtin_memcpy(to + at, from + at, piece * sizeof(E));
    at += piece;
  }
}

// The first n < kVecLanes elements at p, zeros beyond: nothing past them is read.
template <class T>
TF_NOINLINE F load_some(const typename T::Element* p, int n) {
  typename T::Element x[kVecLanes] = {};
  copy_some<kVecLanes>(x, p, n);
  return load_elements(x, T{});
}
template <class T>
TF_NOINLINE void store_some(typename T::Element* p, F v, int n) {
  typename T::Element x[kVecLanes];
  store_elements(x, v, T{});
  copy_some<kVecLanes>(p, x, n);
}
template <class T>
TF_INLINE F load_up_to(const typename T::Element* p, std::int64_t n) {
  return TF_LIKELY(n >= kVecLanes) ? load_elements(p, T{})
         : n <= 0                  ? zero()
                                   : load_some<T>(p, static_cast<int>(n));
}

}  // namespace tileformer::TILEFORMER_UNIT
