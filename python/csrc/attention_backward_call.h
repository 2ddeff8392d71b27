// One call of the attention backward: allocates the gradients that are wanted and fills them.
#pragma once

#include <cstdint>
#include <optional>

#include "attention_call.h"
#include "tileformer/attention_backward.h"

namespace tileformer::torch_binding {

class AttentionBackwardCall {
 public:
  static constexpr int kGradients = 5;  // of query, key, value, attn_mask, sinks
  enum Wanted { kQuery = 1, kKey = 2, kValue = 4, kMask = 8, kSinks = 16, kInputs = kQuery | kKey | kValue };

  // call: bound, with its results set; has to outlive this object. grad_out may have any strides: where its
  // rows are not adjacent in memory it is copied.
  AttentionBackwardCall(const AttentionCall& call, const Tensor& grad_out,
                        const std::optional<Tensor>& grad_lse, std::int64_t wanted);

  // Plans only.
  Status plan(AttentionBackwardPlan* plan) const;
  // Fails for what the library refuses, throws nothing.
  Status try_run();
  // Throws with the Status's message.
  void run();

  // Empty ([0]) where it was not wanted.
  const Tensor& gradient(int i) const { return gradients_[i]; }

 private:
  AttentionBackwardArgs args_;
  Tensor grad_out_;
  std::optional<Tensor> grad_lse_;
  Tensor gradients_[kGradients];
};

}  // namespace tileformer::torch_binding
