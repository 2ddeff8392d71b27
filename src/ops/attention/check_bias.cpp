#include "ops/attention/check_parts.h"

namespace tileformer::attention {
namespace {

Status check_mask(const AttentionArgs& args, const Problem& problem, const Longest& longest) {
  const TensorView& mask = args.attn_mask;
  if (!mask) return Status::ok();
  if (Status s = check_view("attn_mask", mask, 4, "[batch|1, heads|1, seq_q|1, seq_k|1]"); !s) return s;
  if (mask.dtype != DType::boolean && !is_floating(mask.dtype)) {
    return wrong("attn_mask", std::string("dtype ") + name_of(mask.dtype),
                 "bool (true: attend) or a floating dtype (added to the scores)");
  }
  const std::int64_t full[4] = {problem.sequences, problem.heads, longest.queries, longest.keys};
  for (int i = 0; i < 4; ++i) {
    // Sequences of a packed batch differ in length; the mask may be made for a longer maximum than occurs.
    const bool covers = problem.packed && i >= 2 ? mask.shape[i] >= full[i] : mask.shape[i] == full[i];
    if (covers || mask.shape[i] == 1) continue;
    const TensorView shape(nullptr, DType::f32, {full[0], full[1], full[2], full[3]}, {});
    return wrong("attn_mask", "shape " + describe_shape(mask),
                 describe_shape(shape) +
                     (problem.packed ? " [sequences, heads, longest seq_q, longest seq_k]"
                                     : " [batch, heads, seq_q, seq_k]") +
                     ", or 1 in any dimension");
  }
  return Status::ok();
}

Status check_alibi(const AttentionArgs& args, const Problem& problem) {
  const TensorView& slopes = args.alibi_slopes;
  if (!slopes) return Status::ok();
  const int rank = slopes.rank == 1 ? 1 : 2;
  if (Status s = check_view("alibi_slopes", slopes, rank, "[heads] or [batch, heads]"); !s) return s;
  if (slopes.dtype != DType::f32) {
    return wrong("alibi_slopes", std::string("dtype ") + name_of(slopes.dtype), "float32");
  }
  const std::string heads = std::to_string(problem.heads);
  if (slopes.shape[rank - 1] != problem.heads || (rank == 2 && slopes.shape[0] != problem.sequences)) {
    return wrong("alibi_slopes", "shape " + describe_shape(slopes),
                 "[" + heads + "] or [" + std::to_string(problem.sequences) + ", " + heads + "]");
  }
  return Status::ok();
}

Status check_sinks(const AttentionArgs& args, const Problem& problem) {
  const TensorView& sinks = args.sinks;
  if (!sinks) return Status::ok();
  if (Status s = check_view("sinks", sinks, 1, "[heads]"); !s) return s;
  if (!is_floating(sinks.dtype)) {
    return wrong("sinks", std::string("dtype ") + name_of(sinks.dtype), "a floating dtype");
  }
  if (sinks.shape[0] != problem.heads) {
    return wrong("sinks", "shape " + describe_shape(sinks),
                 "[" + std::to_string(problem.heads) + "], one logit per head");
  }
  return Status::ok();
}

}  // namespace

Status check_bias(const AttentionArgs& args, const Problem& problem, const Longest& longest) {
  if (Status s = check_mask(args, problem, longest); !s) return s;
  if (Status s = check_alibi(args, problem); !s) return s;
  return check_sinks(args, problem);
}

}  // namespace tileformer::attention
