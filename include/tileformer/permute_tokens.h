// Tokens in the order of the experts that serve them, and back:
//
//   permute      rows[r]  = tokens[t]                  r-th pair (t, j) with a valid expert
//   unpermute    out[t]   = sum over the rows of t of weights[t, j] * rows[r]
//
// Rows are in the order of experts, then of t, then of j, as fused_experts orders them; counts[e] of them are
// of expert e. source[r] = t * k + j names the pair. Pairs whose expert is -1 or `num_experts` (a slot that
// was dropped, or that another rank serves) have no row: shapes do not depend on the indices, so as many rows
// at the end are 0 with source -1, and no count includes them.
//
// Sums are fp32 in rising order of rows, rounded once. A row with source -1 has no influence, not even with
// NaN; a token without rows gets zeros. Results are the same bits for any number of threads.
#pragma once

#include <cstdint>

#include "tileformer/executor.h"
#include "tileformer/status.h"
#include "tileformer/tensor_view.h"

namespace tileformer {

struct PermuteTokensArgs {
  // [tokens, hidden], f32, f16, bf16 or f64, unit stride in the last dimension.
  TensorView tokens;
  // [tokens, k], i32 or i64, any strides: -1..num_experts.
  TensorView experts;
  // [tokens * k, hidden] as tokens; i64 [num_experts]; i64 [tokens * k]. The last two dense.
  TensorView rows, counts, source;
};

// Nothing is written unless every argument, every index included, is right. The scratch is kept by the
// calling thread for its next call. The gradient of tokens is unpermute_tokens of that of rows, with weights
// of 1.
Status permute_tokens(const PermuteTokensArgs& args, Executor& executor);

struct UnpermuteTokensArgs {
  // [rows, hidden], f32, f16 or bf16 (f64: reference loops), unit stride in the last dimension.
  TensorView rows;
  // i64 [rows], any stride: 0..tokens*k-1, no pair twice, or -1.
  TensorView source;
  // [tokens, k], any floating dtype (f64 only with f64 rows), any strides.
  TensorView weights;
  // [tokens, hidden] as rows. Must not overlap an input.
  TensorView out;
};

// As permute_tokens: nothing is written unless all is right, scratch is kept.
Status unpermute_tokens(const UnpermuteTokensArgs& args, Executor& executor);

// The same as loops over fp64, obviously right and slow: oracle, and the path for f64.
Status unpermute_tokens_reference(const UnpermuteTokensArgs& args);

//   grad_rows[r] = weights[t, j] * grad_out[t],     grad_weights[t, j] = <grad_out[t], rows[r]>
//
// 0 for rows with source -1, and for pairs without a row.
struct UnpermuteTokensBackwardArgs {
  TensorView rows, source, weights;  // as the forward's
  // [tokens, hidden] as rows; unit stride in the last dimension.
  TensorView grad_out;
  // Each optional: as rows; [tokens, k] in the dtype of weights, any strides.
  TensorView grad_rows, grad_weights;
};

Status unpermute_tokens_backward(const UnpermuteTokensBackwardArgs& args, Executor& executor);

Status unpermute_tokens_backward_reference(const UnpermuteTokensBackwardArgs& args);

}  // namespace tileformer
