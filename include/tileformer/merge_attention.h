// Attention of the same queries to several sets of keys, merged into attention to all of them:
//
//   lse = log(sum_p exp(lse_p)),     out = sum_p exp(lse_p - lse) out_p
//
// for keys that were split into parts: a prefix that sequences share, the pieces of a long sequence, the
// shards of several machines. Sums are fp32 in the order of the parts.
//
// A part whose lse is -inf saw nothing and has no influence, whatever its out holds. A row of nothing but
// such parts gets out = 0 and lse = -inf. A part whose lse is +inf outweighs every finite one; several share
// equally. A NaN in an lse, or in the out of a part that saw something, reaches its row (column) and no
// other. A sink has to be in one of the parts only.
//
// Results are the same bits for any number of threads, and a row's do not depend on other rows.
//
// Source: Milakov and Gimelshein, Online normalizer calculation for softmax (2018).
#pragma once

#include <vector>

#include "tileformer/executor.h"
#include "tileformer/status.h"
#include "tileformer/tensor_view.h"

namespace tileformer {

struct MergeAttentionArgs {
  // One entry for each part, 1 to 256, the same number of both: [batch, heads, seq, dim_v], f32, f16 or bf16,
  // each its own, unit stride in the last dimension, and [batch, heads, seq] f32, natural log. Any other
  // strides: parts that stand in one tensor are views of it.
  std::vector<TensorView> part_out, part_lse;
  // As the parts; f32, f16 or bf16. May be the very tensors of a part.
  TensorView out;
  TensorView lse;  // optional
};

// f64 in out (then in lse and the parts' lse too) runs the reference.
Status merge_attention_states(const MergeAttentionArgs& args, Executor& executor);

// The same as loops over fp64, obviously right and slow.
Status merge_attention_states_reference(const MergeAttentionArgs& args);

}  // namespace tileformer
