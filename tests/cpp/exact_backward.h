// The gradients that attention has, exactly: attention_backward_reference without rounding.
#pragma once

#include "attention_backward_data.h"
#include "widened.h"

namespace tileformer::test {

// From the exact out and lse, or (given) from those in args.
inline Status exact_backward(AttentionBackwardArgs args, Gradients* result, bool given = false) {
  AttentionArgs& f = args.forward;
  Widened copies;
  for (TensorView* view : {&f.query, &f.key, &f.value, &f.out, &f.lse, &args.grad_out, &args.grad_lse})
    copies.widen(*view);
  for (int i = 0; i < kGradients; ++i) copies.widen(gradient_view(args, i));
  Status status;
  if (!given) status = attention_reference(f);
  if (status) status = attention_backward_reference(args);
  *result = gradients_of(args);
  return status;
}

}  // namespace tileformer::test
