// From softmax statistics to what O is multiplied by, and lse. Included by kernels only.
#pragma once

#include "tile/config.h"

namespace tileformer::TILEFORMER_UNIT {

// Lanes are rows; m, sink in log2 units, sink -inf: none. exact_sum: of the probabilities before they were
// rounded, for lse. *factor: the factor of O; returns lse, natural.
TF_INLINE F finish_lanes(F sum, F exact_sum, F m, F sink, F dropout_scale, F* factor) {
  const M nothing = equal(sum, zero());
  // A sink beyond 2^100 of the reference leaves nothing of the sum, and would overflow.
  const F above = sub(sink, m);
  const M sink_only = greater(above, set(100.0f));
  const F sink_weight = exp2(min(set(100.0f), above));
  const F f = select(sink_only, exp2(sub(zero(), above)), div(dropout_scale, add(sum, sink_weight)));
  *factor = select(both(nothing, equal(sink, sink)), zero(), f);
  F log_sum = add(m, log2(add(exact_sum, sink_weight)));
  log_sum = select(either(nothing, sink_only), sink, log_sum);
  log_sum = select(equal(sum, sum), log_sum, sum);  // NaN
  return mul(log_sum, set(kLn2));
}

}  // namespace tileformer::TILEFORMER_UNIT
