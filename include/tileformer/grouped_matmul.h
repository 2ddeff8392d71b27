// Rows that stand in the order of their experts times each expert's weights:
//
//   out[r] = weight[e] rows[r] + bias[e]
//
// where the first counts[0] rows belong to expert 0, the next counts[1] to expert 1, and so on. Rows beyond
// the sum of counts belong to nobody: they are not read, their out is zero, and so is their gradient. counts
// are read when the call is made: it costs no plan and no copy that they change from call to call. A negative
// count, or counts of more rows than there are, is an error, found before anything is written.
//
// Sums are fp32, one element of `in` after the other within a part of it and then the parts in their order,
// and rounded once. Results are the same bits for any number of threads. They may differ in the last bits
// with the number of rows that an expert gets, because few rows are multiplied in another order than many. A
// NaN in a row stays in its row; weights of an expert without rows have no influence. The gradients are
//
//   grad_rows[r]   = weight[e]^T grad_out[r]
//   grad_weight[e] = sum over its rows of grad_out[r] rows[r]^T,      grad_bias[e] = sum of grad_out[r]
//
// with sums in fp32 in the order of the rows, rounded once; zeros for an expert without rows.
//
// Source: Gale et al., MegaBlocks (2022), for products without padding to a capacity.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "tileformer/executor.h"
#include "tileformer/expert_weights.h"
#include "tileformer/isa.h"
#include "tileformer/status.h"
#include "tileformer/tensor_view.h"
#include "tileformer/workspace.h"

namespace tileformer {

struct GroupedMatmulArgs {
  // [rows, in], f32, f16 or bf16 (f64: reference loops), unit stride in the last dimension.
  TensorView rows;
  // [experts, out, in] in the dtype of rows; no codes. Transposed storage is a view.
  ExpertWeights weights;
  // i64 [experts], any stride.
  TensorView counts;
  // [rows, out], dtype of rows, unit stride in the last dimension. Must not overlap an input.
  TensorView out;
};

// What will be done, decided from the problem and the CPU alone.
struct GroupedMatmulPlan {
  Isa isa = Isa::portable;
  const char* unit = "";         // what multiplies tiles, as in AttentionPlan
  int row_lanes = 0;             // rows of a tile
  int streamed_rows = 0;         // an expert with at most so many rows streams its weights, without tiles
  int depth = 0;                 // elements of `in` that are summed before a sum goes to memory
  std::int64_t out_slice = 0;    // rows of weights of a work item
  std::size_t packed_bytes = 0;  // rows that are packed at a time
  int threads = 1;
  std::size_t workspace_bytes = 0;
  std::string note;  // a slower path and its reason; empty if none

  std::string to_string() const;
};

// Checks every argument but the values in counts, and plans. threads: the workers that may be used.
Status plan_grouped_matmul(const GroupedMatmulArgs& args, int threads, GroupedMatmulPlan* plan);

// Runs what plan_grouped_matmul planned for the same args. workspace.bytes >= plan.workspace_bytes.
Status grouped_matmul(const GroupedMatmulArgs& args, const GroupedMatmulPlan& plan, Workspace workspace,
                      Executor& executor);

// Plans and runs; the scratch is kept by the calling thread for its next call.
Status grouped_matmul(const GroupedMatmulArgs& args, Executor& executor);

// The same mathematics as loops over fp64, obviously right and slow: oracle, documentation, and the path for
// f64.
Status grouped_matmul_reference(const GroupedMatmulArgs& args);

struct GroupedMatmulBackwardArgs {
  // What the forward was given. out and bias are not read and may be absent.
  GroupedMatmulArgs forward;
  // [rows, out], dtype of rows, unit stride in the last dimension.
  TensorView grad_out;

  // Each optional (absent: not computed). Every element is written. grad_rows as rows, unit stride in the
  // last dimension; grad_weight in the shape of the weights, in their dtype or f32, unit stride in one of the
  // last two dimensions; grad_bias [experts, out], f32, f16 or bf16 (f64 beside f64), unit stride in the
  // last.
  TensorView grad_rows, grad_weight, grad_bias;
};

struct GroupedMatmulBackwardPlan {
  Isa isa = Isa::portable;
  const char* unit = "";
  GroupedMatmulPlan grad_rows;      // a product with the transposed weights; threads 0: not wanted
  std::int64_t weight_slice = 0;    // lines of grad_weight of a work item
  std::int64_t weight_columns = 0;  // its columns, unless an expert has very many rows
  std::size_t packed_bytes = 0;     // rows that are packed at a time for grad_weight
  int threads = 1;
  std::size_t workspace_bytes = 0;
  std::string note;

  std::string to_string() const;
};

Status plan_grouped_matmul_backward(const GroupedMatmulBackwardArgs& args, int threads,
                                    GroupedMatmulBackwardPlan* plan);

Status grouped_matmul_backward(const GroupedMatmulBackwardArgs& args, const GroupedMatmulBackwardPlan& plan,
                               Workspace workspace, Executor& executor);

// Plans and runs; the scratch is kept by the calling thread for its next call.
Status grouped_matmul_backward(const GroupedMatmulBackwardArgs& args, Executor& executor);

// Loops over fp64: oracle, documentation, and the path for f64.
Status grouped_matmul_backward_reference(const GroupedMatmulBackwardArgs& args);

}  // namespace tileformer
