// The gradients of fused_experts.
//
// With dy = grad_out[t] and, for each pair (t, j) with expert e, g and u its gate and up, h as in the
// forward:
//
//   q               = down[e]^T dy
//   grad_weights    = <q, h> + <dy, down_bias[e]>
//   dh              = weights[t, j] q,      dg = dh * dh/dg,  du = dh * dh/du
//   grad_hidden[t] += gate_up[e]^T (dg, du)
//   grad_gate_up[e]      = sum over its pairs of (dg, du) hidden[t]^T
//   grad_gate_up_bias[e] = sum over its pairs of (dg, du)
//   grad_down[e]         = sum over its pairs of dy (weights[t, j] h)^T
//   grad_down_bias[e]    = sum over its pairs of weights[t, j] dy
//
// Accumulators are fp32 and rounded once, at the end; (dg, du) and weights * h are rounded to the dtype
// of hidden where that dtype is multiplied as it is, as in the forward. Clamped values of swiglu_oai have no
// gradient. Pairs that contribute nothing get grad_weights 0 and have no influence. Experts without tokens
// get gradients of zero. Results are the same bits for any number of threads.
#pragma once

#include "tileformer/fused_experts.h"

namespace tileformer {

struct FusedExpertsBackwardArgs {
  // What the forward was given. out is not read and may be absent. Weights are no codes. gate_up_out: what
  // the forward stored, read here; absent: gate and up are computed again.
  FusedExpertsArgs forward;
  // As hidden; unit stride in the last dimension, or stride 0 everywhere in a dimension.
  TensorView grad_out;

  // Each optional (empty: not computed). Every element is written. grad_hidden as hidden; the weights' in
  // shape and strides' order (unit stride in the same dimension) of the weights, in their dtype or f32;
  // grad_weights in shape and dtype of weights; biases' as the biases.
  TensorView grad_hidden, grad_gate_up, grad_down, grad_weights;
  TensorView grad_gate_up_bias, grad_down_bias;
};

struct FusedExpertsBackwardPlan {
  Isa isa = Isa::portable;
  const char* unit = "";
  int token_lanes = 0;
  int depth = 0;
  std::int64_t inter_slice = 0, hidden_slice = 0;
  std::int64_t wave_pairs = 0;
  int threads = 1;
  std::size_t workspace_bytes = 0;
  std::string note;

  std::string to_string() const;
};

Status plan_fused_experts_backward(const FusedExpertsBackwardArgs& args, int threads,
                                   FusedExpertsBackwardPlan* plan);

Status fused_experts_backward(const FusedExpertsBackwardArgs& args, const FusedExpertsBackwardPlan& plan,
                              Workspace workspace, Executor& executor);

// Plans and runs; the scratch is kept by the calling thread for its next call.
Status fused_experts_backward(const FusedExpertsBackwardArgs& args, Executor& executor);

// Loops over fp64: oracle, documentation, and the path for f64.
Status fused_experts_backward_reference(const FusedExpertsBackwardArgs& args);

}  // namespace tileformer
