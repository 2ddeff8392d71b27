// The router of a mixture of experts: from a token's logits to the experts that serve it, and their weights.
//
//   score[e]   = softmax over experts of the logits, or sigmoid(logit[e])
//   choice     : the k experts with the largest score[e] + bias[e], ties to the lower index
//   weight[j]  = scale * score[e_j], or with renormalize
//                scale * score[e_j] / sum over the chosen of score       softmax
//                scale * score[e_j] / (sum + 1e-20)                      sigmoid
//
// in the order of the choice. bias joins the choice, not the weight. With num_groups > 1 experts form groups
// of neighbours; the top_groups groups with the largest sum of their two largest score + bias (groups of one
// expert: of that one) are kept, ties to the lower index, and only their experts can be chosen. Without bias,
// and where all groups are kept, experts are compared by their logits, so that scores that round to 0 or 1
// keep their order. Softmax with renormalize is the softmax of the chosen logits and does not vanish with
// their scores.
//
// A row with a NaN logit, and with softmax one whose largest logit is infinite, has weights of NaN and
// experts 0..k-1. No other row changes, but where a capacity makes them compete. A logit of -inf has score 0;
// where bias lets softmax choose nothing else, renormalized weights are NaN.
//
// With a capacity an expert serves so many tokens at most: the first ones (`position`), or those whose weight
// is largest (`score`; ties to the lower token, NaN before all). Slots beyond it are dropped: expert -1,
// weight 0 (NaN stays NaN). Weights are renormalized before slots are dropped and not again after.
//
// Results are the same bits for any number of threads.
//
// Sources: Shazeer et al., Sparsely-Gated Mixture-of-Experts (2017); Fedus et al., Switch Transformers (2021)
// for capacities; DeepSeek-V3 (2024) for sigmoid scores, bias and groups. Dropping follows Megatron-LM.
#pragma once

#include <cstdint>

#include "tileformer/executor.h"
#include "tileformer/status.h"
#include "tileformer/tensor_view.h"

namespace tileformer {

enum class RouteScoring : std::uint8_t { softmax, sigmoid };
enum class RouteDrop : std::uint8_t { position, score };

struct RouteArgs {
  // [tokens, experts], f32, f16 or bf16 (f64: reference loops), unit stride in the last dimension; 1 to 1024
  // experts.
  TensorView logits;
  // Optional [experts], f32, f16, bf16 or f64, unit stride: finite or -inf.
  TensorView bias;

  // [tokens, k], f32 (f64 with f64 logits), any strides. Largest score + bias first. 1 <= k <= experts of the
  // kept groups.
  TensorView weights;
  // i32 [tokens, k], any strides: 0..experts-1, or -1 where the slot was dropped.
  TensorView experts;
  // Optional, as experts: the choice before slots were dropped, for route_backward.
  TensorView chosen;

  RouteScoring scoring = RouteScoring::softmax;
  std::int64_t num_groups = 1;  // divides experts
  std::int64_t top_groups = 1;  // 1..num_groups
  bool renormalize = true;
  double scale = 1;  // finite, greater than 0

  std::int64_t capacity = -1;  // tokens that an expert serves at most; -1: all
  RouteDrop drop = RouteDrop::position;
};

// Nothing is written unless every argument is right.
Status route(const RouteArgs& args, Executor& executor);

// The same as loops over fp64, obviously right and slow: oracle, documentation, and the path for f64.
Status route_reference(const RouteArgs& args);

// The gradient with respect to the logits, through weights and renormalization; the choice has none.
struct RouteBackwardArgs {
  TensorView logits;  // as the forward's
  // i32 [tokens, k], any strides: as the forward wrote them. chosen is absent where nothing was dropped.
  TensorView experts, chosen;
  // [tokens, k], f32 (f64 with f64 logits), any strides, 0 too. That of a dropped slot has no influence.
  TensorView grad_weights;
  // As logits. NaN in rows whose weights the logits made NaN.
  TensorView grad_logits;

  RouteScoring scoring = RouteScoring::softmax;
  bool renormalize = true;
  double scale = 1;
};

// Results are the same bits for any number of threads. f64 in logits runs the reference.
Status route_backward(const RouteBackwardArgs& args, Executor& executor);

Status route_backward_reference(const RouteBackwardArgs& args);

}  // namespace tileformer
