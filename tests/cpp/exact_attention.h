// What attention should give, exactly: attention_reference without rounding.
#pragma once

#include <vector>

#include "tileformer/attention.h"
#include "widened.h"

namespace tileformer::test {

struct AttentionResult {
  std::vector<double> out, lse;  // in logical order; lse empty if not asked for
};

inline AttentionResult result_of(const AttentionArgs& args) {
  return {elements_of(args.out), elements_of(args.lse)};
}

// fp64 needs no scales: codes become what they stand for.
inline void apply_scale(const TensorView& pages, TensorView& scale) {
  if (!scale) return;
  for_each_index(pages, [&](const Index& at) { set(pages, at, get(pages, at) * get(scale, at)); });
  scale = TensorView();
}

// attention_reference on the same inputs widened to fp64, so that nothing is rounded.
inline Status exact_attention(AttentionArgs args, AttentionResult* result) {
  Widened copies;
  for (TensorView* view : {&args.query, &args.key, &args.value, &args.out, &args.lse}) copies.widen(*view);
  apply_scale(args.key, args.key_scale);
  apply_scale(args.value, args.value_scale);
  Status status = attention_reference(args);
  *result = result_of(args);
  return status;
}

}  // namespace tileformer::test
