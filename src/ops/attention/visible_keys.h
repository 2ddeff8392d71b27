// The keys [first_visible, end_visible) that a query may see by length, range, causal and window. Included by
// kernels only.
#pragma once

#include "ops/attention/kernel_args.h"

namespace tileformer::TILEFORMER_UNIT {

using attention::KernelArgs;
using attention::KernelSequence;
using attention::Operand;

TF_INLINE std::int64_t first_visible(const KernelArgs& a, const KernelSequence& s, std::int64_t query) {
  std::int64_t begin = s.range_begin;
  if (a.window_left >= 0) begin = max_of(begin, query + s.diagonal - a.window_left);
  return begin;
}
TF_INLINE std::int64_t end_visible(const KernelArgs& a, const KernelSequence& s, std::int64_t query) {
  std::int64_t end = s.range_end;
  if (a.causal) end = min_of(end, query + s.diagonal + 1);
  if (a.window_right >= 0) end = min_of(end, query + s.diagonal + a.window_right + 1);
  return end;
}

}  // namespace tileformer::TILEFORMER_UNIT
