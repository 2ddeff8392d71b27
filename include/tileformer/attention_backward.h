// The gradients of attention_forward, in one pass over blocks and O(N) memory.
//
// With P = exp(score - lse) recomputed block by block, m the dropout factor (0 or 1 / (1 - p)) and
// D = rowsum(grad_out * out) - grad_lse:
//
//   grad_value[j] = sum_i m P[i, j] grad_out[i]
//   dS[i, j]      = P[i, j] (m grad_out[i] . v[j] - D[i])           = grad_mask[i, j]
//   grad_query[i] = scale * sum_j dS[i, j] cap'[i, j] k[j],         cap' = 1 - tanh(scale q.k / softcap)^2
//   grad_key[j]   = scale * sum_i dS[i, j] cap'[i, j] q[i]
//   grad_sinks[h] = -sum_i exp(sink - lse[i]) D[i]
//
// grad_key and grad_value are summed over the query heads of their kv head, grad_mask over the dimensions in
// which the mask broadcasts. Accumulators are fp32 and rounded once, at the end. What a query does not see
// has no influence, as in the forward; a NaN in a position that is seen reaches the gradients that depend on
// it and no others. Results are the same bits for any number of threads and whatever else is in the batch.
//
// Source: Dao et al., FlashAttention-2 (2023), algorithm 2, with the loops exchanged: a task owns queries,
// and adds to dK and dV in a fixed order.
#pragma once

#include "tileformer/attention.h"

namespace tileformer {

struct AttentionBackwardArgs {
  // What the forward was given, and its results: out and lse are read here, and both are needed. A lse of any
  // value is fine in rows that see nothing.
  AttentionArgs forward;

  // [batch, heads, seq_q, dim_v], dtype of query; unit stride in the last dimension, any other strides, 0
  // included.
  TensorView grad_out;
  // Optional, in shape and dtype of lse, any strides: the gradient that arrives at lse.
  TensorView grad_lse;

  // Each optional (empty: not computed), in shape and dtype of query, key and value, unit stride in the last
  // dimension. Every element is written.
  TensorView grad_query, grad_key, grad_value;
  // Optional; needs a floating attn_mask. f32 (f64 with f64 inputs), in the shape of attn_mask, of which
  // dimensions with stride 0 may be 1 here: it is summed over every dimension in which it has size 1.
  TensorView grad_mask;
  // Optional; needs sinks. f32 (f64 with f64 inputs) [heads].
  TensorView grad_sinks;
};

// What will be done, decided from the problem and the CPU alone.
struct AttentionBackwardPlan {
  Isa isa = Isa::portable;
  const char* unit = "";   // as in AttentionPlan
  int query_lanes = 0;     // queries of one score tile
  int key_block = 0;       // keys per on-chip block
  int query_block = 0;     // queries whose P and dS are on the chip at a time
  std::int64_t chunk = 0;  // queries of a task: grad_query stays on the chip, grad_key and grad_value are
                           // added up in fp32 memory where there are several
  std::int64_t tasks = 0;  // work items
  std::int64_t slots = 0;  // heads whose fp32 grad_key and grad_value are in memory at a time
  int threads = 1;         // workers
  std::size_t workspace_bytes = 0;
  std::string note;  // a slower path and its reason; empty if none

  std::string to_string() const;
};

// Checks every argument and plans. threads: the workers that may be used.
Status plan_attention_backward(const AttentionBackwardArgs& args, int threads, AttentionBackwardPlan* plan);

// Runs what plan_attention_backward planned for the same args. workspace.bytes >= plan.workspace_bytes.
Status attention_backward(const AttentionBackwardArgs& args, const AttentionBackwardPlan& plan,
                          Workspace workspace, Executor& executor);

// Plans and runs; the scratch is kept by the calling thread for its next call.
Status attention_backward(const AttentionBackwardArgs& args, Executor& executor);

// The same mathematics as double loops over fp64, obviously right and slow: oracle, documentation, and the
// path for f64 inputs.
Status attention_backward_reference(const AttentionBackwardArgs& args);

}  // namespace tileformer
