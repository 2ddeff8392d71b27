#include "ops/moe/experts/pairs.h"

#include "base/element.h"

namespace tileformer::moe {

Status SortedPairs::sort(const FusedExpertsArgs& args, const Problem& problem) {
  offsets_.resize(static_cast<std::size_t>(problem.experts) + 2);
  std::vector<Pair> pairs(static_cast<std::size_t>(problem.pairs()));
  if (Status s = dispatch(args.experts, problem.experts, {offsets_.data(), pairs.data()}); !s) return s;
  const auto valid = static_cast<std::size_t>(offsets_[static_cast<std::size_t>(problem.experts)]);
  token_.resize(valid);
  slot_.resize(valid);
  weight_.resize(valid);
  for (std::size_t i = 0; i < valid; ++i) {
    token_[i] = pairs[i].token;
    slot_[i] = pairs[i].slot;
    weight_[i] = static_cast<float>(
        load_element(args.weights.data, args.weights.dtype,
                     pairs[i].token * args.weights.stride[0] + pairs[i].slot * args.weights.stride[1]));
  }
  return Status::ok();
}

}  // namespace tileformer::moe
