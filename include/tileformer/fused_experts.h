// Mixture of experts from routing to combined output:
//
//   out[t] = sum_j weights[t, j] * (down[e] h + down_bias[e]),     e = experts[t, j]
//   h[i]   = up[i] * act(gate[i]),     (gate, up) = gate_up[e] hidden[t] + gate_up_bias[e]
//
// with rows of gate_up that are all gates first and then all ups, or, `interleaved`, gate and up by turns.
// Rows of tokens are gathered while they are packed for the product; the activation and the weighted sum
// happen where a product's tile leaves the matrix unit. No copy of the tokens in the order of the experts,
// nor of the experts' outputs, exists in memory.
//
//   activation   h[i]
//   silu         up * gate * sigmoid(gate)
//   gelu         up * gate * (1 + erf(gate / sqrt 2)) / 2
//   gelu_tanh    up * gate * (1 + tanh(sqrt(2 / pi) (gate + 0.044715 gate^3))) / 2
//   swiglu_oai   (up' + 1) * gate' * sigmoid(alpha * gate'), gate' = min(gate, limit),
//                up' = clamp(up, -limit, limit)
//
// An expert index of -1 or of `experts` contributes nothing, not even NaN (a slot that another rank serves);
// any other index outside 0..experts-1 is an error, found before anything is written. A token without
// experts gets zeros. A token that names an expert twice gets it twice. A NaN in a token stays in its row.
//
// Products are summed in fp32; h is rounded to the dtype of hidden where that dtype is multiplied as it is
// (bf16 on units with bf16 products) and kept in fp32 elsewhere. A token's experts are added in rising order
// of their index, then of j, in fp32, and rounded once. Results are the same bits for any number of threads.
// They may differ in the last bits with the number of tokens that an expert gets, because few tokens are
// multiplied in another order than many. Few tokens meet codes in whole numbers: hidden and h are then
// rounded to 15 bits of the largest element of their row (relative error 3e-5 where elements are of one size,
// far below that of the codes; elements a thousand times smaller than the largest keep 5 bits).
//
// Sources: Shazeer et al., Sparsely-Gated Mixture-of-Experts (2017); Shazeer, GLU Variants (2020); the
// clamped form is gpt-oss's (2025). Gale et al., MegaBlocks (2022) for products without padding to a
// capacity.
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

enum class ExpertActivation : std::uint8_t { silu, gelu, gelu_tanh, swiglu_oai };

constexpr const char* name_of(ExpertActivation a) {
  switch (a) {
    case ExpertActivation::silu: return "silu";
    case ExpertActivation::gelu: return "gelu";
    case ExpertActivation::gelu_tanh: return "gelu_tanh";
    case ExpertActivation::swiglu_oai: return "swiglu_oai";
  }
  return "?";
}

struct FusedExpertsArgs {
  // [tokens, hidden], f32, f16 or bf16 (f64: reference loops), unit stride in the last dimension.
  TensorView hidden;
  // [experts, 2 * inter, hidden] and [experts, hidden, inter], in the dtype of hidden or codes.
  ExpertWeights gate_up, down;
  // [tokens, k]: any floating dtype, and i32 or i64.
  TensorView weights, experts;
  // As hidden. Must not overlap an input.
  TensorView out;

  ExpertActivation activation = ExpertActivation::silu;
  bool interleaved = false;  // rows of gate_up: gate, up, gate, up, ...
  double alpha = 1.702;      // of swiglu_oai; finite
  double limit = 7;          // of swiglu_oai; > 0

  // Optional, for fused_experts_backward, which then need not compute it again: [tokens * k, 2 * inter],
  // dtype of hidden. Row r holds gate and up (gates first, whatever gate_up's order) of the r-th pair (t, j)
  // with a valid expert, in the order of experts, then of t, then of j; rows beyond the valid pairs are not
  // written.
  TensorView gate_up_out;
};

// What will be done, decided from the problem and the CPU alone.
struct FusedExpertsPlan {
  Isa isa = Isa::portable;
  const char* unit = "";  // what multiplies tiles, as in AttentionPlan
  int token_lanes = 0;    // tokens of a tile
  int row_tokens = 0;     // an expert with at most so many tokens streams its weights, without tiles
  int depth = 0;          // elements along which products are summed before a sum goes to memory
  std::int64_t inter_slice = 0, hidden_slice = 0;  // rows of a work item
  std::int64_t wave_pairs = 0;                     // (token, expert) pairs whose rows are packed at a time
  int threads = 1;
  std::size_t workspace_bytes = 0;
  std::string note;  // a slower path and its reason; empty if none

  std::string to_string() const;
};

// Checks every argument but the expert indices, and plans. threads: the workers that may be used.
Status plan_fused_experts(const FusedExpertsArgs& args, int threads, FusedExpertsPlan* plan);

// Runs what plan_fused_experts planned for the same args. workspace.bytes >= plan.workspace_bytes.
Status fused_experts(const FusedExpertsArgs& args, const FusedExpertsPlan& plan, Workspace workspace,
                     Executor& executor);

// Plans and runs; the scratch is kept by the calling thread for its next call.
Status fused_experts(const FusedExpertsArgs& args, Executor& executor);

// The same mathematics as loops over fp64, obviously right and slow: oracle, documentation, and the path for
// f64.
Status fused_experts_reference(const FusedExpertsArgs& args);

}  // namespace tileformer
