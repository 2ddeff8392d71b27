// The activations of gated experts: h = up * act(gate). Included by kernels only.
#pragma once

#include "tileformer/fused_experts.h"

namespace tileformer::TILEFORMER_UNIT {

// (1 + erf(x / sqrt 2)) / 2, absolute error 1e-7: Abramowitz and Stegun 7.1.26, of the side where nothing
// cancels.
TF_INLINE F normal_cdf(F x) {
  const F z = mul(abs(x), set(0.70710678f));
  const F t = div(set(1.0f), fma(z, set(0.3275911f), set(1.0f)));
  F p = fma(t, set(1.061405429f), set(-1.453152027f));
  p = fma(p, t, set(1.421413741f));
  p = fma(p, t, set(-0.284496736f));
  p = fma(p, t, set(0.254829592f));
  const F tail = mul(mul(mul(p, t), set(0.5f)), exp2(mul(mul(z, z), set(-kLog2E))));
  return select(greater(x, zero()), sub(set(1.0f), tail), tail);
}

struct GateParameters {
  F alpha, limit;
};

template <ExpertActivation A>
TF_INLINE F gated(F gate, F up, const GateParameters& p) {
  if constexpr (A == ExpertActivation::silu) {
    return mul(mul(gate, sigmoid(gate)), up);
  } else if constexpr (A == ExpertActivation::gelu) {
    return mul(mul(gate, normal_cdf(gate)), up);
  } else if constexpr (A == ExpertActivation::gelu_tanh) {
    const F inner = mul(mul(gate, set(0.79788456f)), fma(mul(gate, gate), set(0.044715f), set(1.0f)));
    return mul(mul(mul(gate, set(0.5f)), add(set(1.0f), tanh(inner))), up);
  } else {
    const F g = min(p.limit, gate);
    const F u = max(sub(zero(), p.limit), min(p.limit, up));
    return mul(mul(g, sigmoid(mul(g, p.alpha))), add(u, set(1.0f)));
  }
}

// Calls use(value) with the activation as a constant.
template <class Use>
TF_INLINE void for_activation(ExpertActivation a, Use use) {
  switch (a) {
    case ExpertActivation::silu: return use.template operator()<ExpertActivation::silu>();
    case ExpertActivation::gelu: return use.template operator()<ExpertActivation::gelu>();
    case ExpertActivation::gelu_tanh: return use.template operator()<ExpertActivation::gelu_tanh>();
    case ExpertActivation::swiglu_oai: return use.template operator()<ExpertActivation::swiglu_oai>();
  }
}

}  // namespace tileformer::TILEFORMER_UNIT
