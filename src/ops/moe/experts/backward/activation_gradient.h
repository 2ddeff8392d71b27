// The derivatives of the activations of gated experts. Included by kernels only.
#pragma once

#include "ops/moe/experts/activation.h"

namespace tileformer::TILEFORMER_UNIT {

struct Gated {
  F h, by_gate, by_up;  // the value and its derivatives
};

// NaN stays NaN. Of a finite gate the derivatives are finite, or infinite where the true ones overflow.
template <ExpertActivation A>
TF_INLINE Gated gated_gradient(F gate, F up, const GateParameters& p) {
  const F one = set(1.0f);
  F value, slope;  // act(gate) and its derivative
  if constexpr (A == ExpertActivation::silu) {
    const F s = sigmoid(gate);
    value = mul(gate, s);
    slope = mul(s, fma(gate, sub(one, s), one));
  } else if constexpr (A == ExpertActivation::gelu) {
    const F cdf = normal_cdf(gate);
    const F density = mul(set(0.39894228f), exp2(mul(mul(gate, gate), set(-0.5f * kLog2E))));
    value = mul(gate, cdf);
    slope = fma(gate, density, cdf);
  } else if constexpr (A == ExpertActivation::gelu_tanh) {
    const F square = mul(gate, gate);
    const F t = tanh(mul(mul(gate, set(0.79788456f)), fma(square, set(0.044715f), one)));
    const F half = mul(set(0.5f), add(one, t));
    const F inner = mul(set(0.79788456f), fma(square, set(3 * 0.044715f), one));
    value = mul(gate, half);
    // 1 - t^2 is below e^-48 beyond 8, where inner may be infinite.
    const F bend = mul(mul(mul(gate, half), sub(one, t)), inner);
    slope = add(half, select(greater(abs(gate), set(8.0f)), zero(), bend));
  } else {
    const F g = min(p.limit, gate);
    const F u = max(sub(zero(), p.limit), min(p.limit, up));
    const F scaled = max(set(-3e38f), mul(g, p.alpha));  // finite, as below it s is 0
    const F s = sigmoid(scaled), rise = add(u, one);
    const F act = mul(g, s);
    const F gate_slope = mul(rise, mul(s, fma(scaled, sub(one, s), one)));
    return {mul(rise, act), select(greater(gate, p.limit), zero(), gate_slope),
            select(greater(abs(up), p.limit), zero(), act)};
  }
  return {mul(value, up), mul(slope, up), value};
}

}  // namespace tileformer::TILEFORMER_UNIT
