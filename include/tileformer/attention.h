// FlashAttention forward on the CPU: softmax(scale * Q K^T + bias) V in O(N) memory.
//
//   score[i, j] = softcap(scale * q[i] . k[j]) + mask[i, j] - alibi_slope * |i + diagonal - j|
//   out[i]      = sum_j exp(score[i, j] - lse[i]) v[j],     lse[i] = log(sum_j exp(score[i, j]) + exp(sink))
//
// Scores, softmax statistics and accumulators are fp32. Query head h reads kv head h / (heads / kv_heads); K
// and V are never repeated in memory. `diagonal` is the key position that stands opposite query 0:
//   top_left      0
//   otherwise     (keys of the sequence) - (queries of the sequence), the bottom-right convention of
//   FlashAttention-2 query_offset  given per sequence, takes the place of both.
// A query sees key j if every condition holds: j < the number of keys, key_range, causal (j <= i + diagonal),
// window (i + diagonal - left <= j <= i + diagonal + right), the bool mask is true, the float mask is not
// -inf. Positions that it does not see have no influence, whatever their K and V hold, NaN and Inf included.
// A query that sees nothing gets out = 0 and lse = -inf (with a sink: lse = sink). A NaN in a position that
// is seen reaches the output. A finite float mask below -2e38 counts as -2e38 (a row of nothing else is
// the mean of V), one above 2e38 as 2e38.
//
// Results are the same bits for any number of threads and whatever else is in the batch.
//
// Two kernels share the work, sequence by sequence: many queries run as tiles of queries, bound by the
// products (prefill), few queries over pages (decode: at most 16 of a sequence) as rows of K and V that
// are read once for all heads of a group, bound by memory. docs/design/decode.md has the reasons.
//
// Sources: Dao et al., FlashAttention (2022) and FlashAttention-2 (2023); Press et al., ALiBi (2022); Salmon
// et al., Philox (2011). Semantics follow flash-attn 2 where it has the feature.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "tileformer/executor.h"
#include "tileformer/isa.h"
#include "tileformer/status.h"
#include "tileformer/tensor_view.h"
#include "tileformer/workspace.h"

namespace tileformer {

enum class Causal : std::uint8_t { none, top_left, bottom_right };

struct AttentionArgs {
  // [batch, heads, seq_q, dim], [batch, kv_heads, seq_k, dim], [batch, kv_heads, seq_k, dim_v]; one dtype out
  // of f32, f16, bf16 (f64: reference loops). Unit stride in the last dimension, any other strides. dim,
  // dim_v in 1..576. Packed sequences: batch 1, the sequences one after the other along seq, see cu_seqlens.
  TensorView query, key, value;
  // [batch, heads, seq_q, dim_v], dtype of query, unit stride in the last dimension. Every element is
  // written.
  TensorView out;
  // Optional [batch, heads, seq_q], f32 (f64 with f64 inputs), any strides: natural-log sum of exponentials.
  TensorView lse;

  // Optional [batch|1, heads|1, seq_q|1, seq_k|1], boolean (true: sees) or floating (added), any strides.
  // With packed sequences: batch = sequences, positions count from the start of each sequence.
  TensorView attn_mask;
  // Optional f32 [heads] or [batch, heads] (packed: [sequences, heads]).
  TensorView alibi_slopes;
  // Optional [heads], floating: one logit per head that joins the denominator only.
  TensorView sinks;

  // Optional, both or none: i32 or i64 [sequences + 1], from 0, never decreasing, ending at seq_q and seq_k.
  TensorView cu_seqlens_query, cu_seqlens_key;
  // Paged keys: key and value are pools of pages, [pages, kv_heads, page_size, dim], and key j of sequence n
  // is row j % page_size of page block_table[n, j / page_size]. block_table i32 [sequences, blocks], unit
  // stride in the last dimension; key_lengths i32 [sequences]; both or none, and without cu_seqlens_key.
  // page_size is a multiple of 16, any number if the table has one column. What lies behind a sequence's
  // length is not read, table entries included. Pages may hold another dtype than query, K and V each its
  // own: f32, f16, bf16, or i8, f8_e4m3, f8_e5m2 with a scale for each row.
  TensorView block_table, key_lengths;
  // f32 [pages, kv_heads, page_size], for quantised pages: an element is its code times the scale of its row.
  TensorView key_scale, value_scale;

  // Optional i32 [batch, 2] (packed: [sequences, 2]): keys outside [first, second) are not seen (padding).
  TensorView key_range;
  // Optional i32 [batch] (packed: [sequences]): the diagonal of each sequence.
  TensorView query_offset;

  std::optional<double> scale;  // default 1/sqrt(dim); kernels round it to fp32
  Causal causal = Causal::none;
  std::int64_t window_left = -1, window_right = -1;  // inclusive; -1: unlimited
  double softcap = 0;                                // c > 0: c * tanh(x / c)

  // Each probability is dropped with probability dropout_p, the rest scaled by 1 / (1 - dropout_p).
  // Counter-based: see philox.h for which bits belong to (batch, head, query, key).
  float dropout_p = 0;
  std::uint64_t dropout_seed = 0, dropout_offset = 0;
};

// What will be done, decided from the problem and the CPU alone. Printable, reproducible, independent of the
// data.
struct AttentionPlan {
  Isa isa = Isa::portable;
  const char* unit = "";    // what multiplies: "amx-bf16", "avx512-bf16-dot", "avx2-fma", "reference", ...
  int query_lanes = 0;      // queries of one score tile (one lane each)
  int key_block = 0;        // keys per on-chip block
  int query_block = 0;      // queries (of all heads of a group together) that share one packed KV block
  bool fold_heads = false;  // short queries: the heads of a group share the lanes of a tile
  std::int64_t tasks = 0;   // work items of tiles of queries (prefill)
  std::int64_t decode_items = 0;  // work items of rows of keys (decode)
  std::int64_t decode_sequences = 0;
  int threads = 1;        // workers
  int threads_asked = 1;  // what the caller allowed
  std::size_t workspace_bytes = 0;
  std::string note;  // a slower path and its reason; empty if none

  std::string to_string() const;
};

// Checks every argument and plans. threads: the workers that may be used.
Status plan_attention(const AttentionArgs& args, int threads, AttentionPlan* plan);

// Runs what plan_attention planned for the same args. workspace.bytes >= plan.workspace_bytes.
Status attention_forward(const AttentionArgs& args, const AttentionPlan& plan, Workspace workspace,
                         Executor& executor);

// Plans and runs; the scratch is kept by the calling thread for its next call.
Status attention_forward(const AttentionArgs& args, Executor& executor);

// The same mathematics as double loops over fp64, obviously right and slow: oracle, documentation, and the
// path for f64 inputs. Accepts what attention_forward accepts.
Status attention_reference(const AttentionArgs& args);

}  // namespace tileformer
