// Random tokens, experts and gradients in guarded memory, and the permutations on every unit of the machine.
#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "guarded_tensors.h"
#include "ops/moe/permute/units.h"
#include "tileformer/permute_tokens.h"
#include "unit_targets.h"

namespace tileformer::test {

struct PermuteCase {
  std::int64_t tokens = 7, hidden = 40, experts = 5, k = 3;
  DType dtype = DType::f32, weight_dtype = DType::f32;
  std::int64_t spare_rows = 2;  // of unpermute: beyond the pairs, with source -1
};

class PermuteData {
 public:
  PermuteTokensArgs permute;
  UnpermuteTokensArgs unpermute;         // of source as permute_tokens wrote it, and rows of its own
  UnpermuteTokensBackwardArgs backward;  // of the same

  // Indices from -1 to experts.
  explicit PermuteData(const PermuteCase& c, Edge edge = Edge::end) : case_(c), tensors_(edge) {
    const std::int64_t pairs = c.tokens * c.k, rows = pairs + c.spare_rows, gap = c.hidden + 3;
    std::uniform_int_distribution<std::int64_t> index(-1, c.experts);
    permute.tokens = random(c.dtype, {c.tokens, c.hidden}, {gap, 1});
    permute.experts = tensors_.allocate(DType::i32, 2, {c.tokens, c.k}, {1, c.tokens});
    for_each_index(permute.experts,
                   [&](const Index& at) { set(permute.experts, at, double(index(generator_))); });
    permute.rows = tensors_.allocate_output(c.dtype, 2, {pairs, c.hidden}, {gap, 1});
    permute.counts = tensors_.allocate_output(DType::i64, 1, {c.experts}, {1});
    permute.source = tensors_.allocate_output(DType::i64, 1, {pairs}, {1});

    unpermute.rows = random(c.dtype, {rows, c.hidden}, {gap, 1});
    unpermute.source = tensors_.allocate(DType::i64, 1, {rows}, {2});
    unpermute.weights = random(c.weight_dtype, {c.tokens, c.k}, {1, c.tokens});
    unpermute.out = tensors_.allocate_output(c.dtype, 2, {c.tokens, c.hidden}, {gap, 1});

    backward.rows = unpermute.rows;
    backward.source = unpermute.source;
    backward.weights = unpermute.weights;
    backward.grad_out = random(c.dtype, {c.tokens, c.hidden}, {0, 1});
    backward.grad_rows = tensors_.allocate_output(c.dtype, 2, {rows, c.hidden}, {-gap, 1});
    backward.grad_weights = tensors_.allocate_output(c.weight_dtype, 2, {c.tokens, c.k}, {2 * c.k, 2});
  }

  // unpermute's source from what permute_tokens wrote, rows without a pair last.
  void take_source() const {
    for (std::int64_t r = 0; r < unpermute.source.shape[0]; ++r)
      set(unpermute.source, {r}, r < case_.tokens * case_.k ? get(permute.source, {r}) : -1);
  }

  bool clear_outputs() const { return tensors_.clear_outputs(); }

 private:
  TensorView random(DType dtype, const Sizes& shape, const Sizes& stride) {
    std::normal_distribution<double> normal;
    const TensorView view = tensors_.allocate(dtype, 2, shape, stride);
    for_each_index(view, [&](const Index& at) { set(view, at, normal(generator_)); });
    return view;
  }

  PermuteCase case_;
  std::mt19937_64 generator_{1};
  GuardedTensors tensors_;
};

using PermuteTarget = UnitTarget<permute_op::Unit>;

inline const std::vector<PermuteTarget>& permute_targets() {
  static const std::vector<PermuteTarget> all = unit_targets(permute_op::units());
  return all;
}

// Of permute_tokens, unpermute_tokens or its backward, by the arguments.
template <class Args>
Status run_permute(const PermuteTarget& on, const Args& args, Executor& executor = serial_executor()) {
  const ForcedUnit forced(on);
  if (!forced.status()) return forced.status();
  if constexpr (std::is_same_v<Args, PermuteTokensArgs>)
    return permute_tokens(args, executor);
  else if constexpr (std::is_same_v<Args, UnpermuteTokensArgs>)
    return unpermute_tokens(args, executor);
  else
    return unpermute_tokens_backward(args, executor);
}

}  // namespace tileformer::test
