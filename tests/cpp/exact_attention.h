// What attention should give, exactly: attention_reference without rounding.
#pragma once

#include <cstdint>
#include <vector>

#include "elements.h"
#include "tileformer/attention.h"

namespace tileformer::test {

struct AttentionResult {
  std::vector<double> out, lse;  // in logical order; lse empty if not asked for
};

inline AttentionResult result_of(const AttentionArgs& args) {
  return {elements_of(args.out), elements_of(args.lse)};
}

// attention_reference on the same inputs widened to fp64, so that nothing is rounded.
inline Status exact_attention(AttentionArgs args, AttentionResult* result) {
  std::vector<double> storage[5];
  TensorView* views[] = {&args.query, &args.key, &args.value, &args.out, &args.lse};
  for (int i = 0; i < 5; ++i) {
    TensorView& view = *views[i];
    if (!view) continue;
    storage[i] = elements_of(view);
    storage[i].reserve(1);  // a pointer even when there is nothing to point to
    const auto [a, b, c, d] = view.shape;
    view = view.rank == 4 ? TensorView::dense(storage[i].data(), DType::f64, {a, b, c, d})
                          : TensorView::dense(storage[i].data(), DType::f64, {a, b, c});
  }
  Status status = attention_reference(args);
  *result = result_of(args);
  return status;
}

}  // namespace tileformer::test
