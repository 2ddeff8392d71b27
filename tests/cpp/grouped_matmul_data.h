// Random rows and experts in guarded memory, and grouped_matmul on every unit of the machine.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "guarded_tensors.h"
#include "ops/moe/grouped_matmul/units.h"
#include "tileformer/grouped_matmul.h"
#include "unit_targets.h"
#include "widened.h"

namespace tileformer::test {

struct GroupedShape {
  std::vector<std::int64_t> counts{5, 0, 20};
  std::int64_t in = 40, out = 24;
  DType dtype = DType::f32;
  bool transposed = false;  // weights and their gradient are stored as [experts, in, out]
  bool bias = true;
  DType bias_dtype = DType::f32;
  DType grad_weight_dtype = DType::f32;  // where dtype is a half type
  std::int64_t beyond = 3;               // rows of no expert
  std::int64_t gap = 3;                  // elements between rows
};

class GroupedData {
 public:
  GroupedMatmulBackwardArgs args;  // args.forward is the forward's

  explicit GroupedData(const GroupedShape& shape, Edge edge = Edge::end) : tensors_(edge) {
    const std::int64_t experts = std::int64_t(shape.counts.size()), in = shape.in, out = shape.out;
    const std::int64_t rows = std::accumulate(shape.counts.begin(), shape.counts.end(), shape.beyond);
    const DType dtype = shape.dtype;
    const bool half = dtype == DType::f16 || dtype == DType::bf16;
    GroupedMatmulArgs& f = args.forward;
    f.rows = filled(dtype, 2, {rows, in}, {in + shape.gap, 1}, 1);
    f.weights.weight =
        filled(dtype, 3, {experts, out, in}, matrix_strides(shape), 1 / std::sqrt(double(in) + 1));
    if (shape.bias)
      f.weights.bias =
          filled(dtype == DType::f64 ? dtype : shape.bias_dtype, 2, {experts, out}, {out + shape.gap, 1}, 1);
    f.counts = tensors_.allocate(DType::i64, 1, {experts}, {2});
    for (std::int64_t e = 0; e < experts; ++e) set(f.counts, {e}, double(shape.counts[std::size_t(e)]));
    f.out = tensors_.allocate_output(dtype, 2, {rows, out}, {out + shape.gap, 1});
    args.grad_out = filled(dtype, 2, {rows, out}, {out + shape.gap, 1}, 1);
    args.grad_rows = tensors_.allocate_output(dtype, 2, {rows, in}, {in + shape.gap, 1});
    args.grad_weight = tensors_.allocate_output(half ? shape.grad_weight_dtype : dtype, 3, {experts, out, in},
                                                matrix_strides(shape));
    if (shape.bias)
      args.grad_bias =
          tensors_.allocate_output(f.weights.bias.dtype, 2, {experts, out}, {out + shape.gap, 1});
  }

  bool clear_outputs() const { return tensors_.clear_outputs(); }

 private:
  static Sizes matrix_strides(const GroupedShape& s) {
    const std::int64_t row = s.in + s.gap, column = s.out + s.gap;
    return s.transposed ? Sizes{s.in * column + 1, 1, column} : Sizes{s.out * row + 1, row, 1};
  }
  TensorView filled(DType dtype, int rank, const Sizes& shape, const Sizes& strides, double spread) {
    const TensorView view = tensors_.allocate(dtype, rank, shape, strides);
    std::normal_distribution<double> normal(0, spread);
    for_each_index(view, [&](const Index& at) { set(view, at, normal(random_)); });
    return view;
  }

  GuardedTensors tensors_;
  std::mt19937_64 random_{1};
};

// Outputs in logical order.
struct GroupedResult {
  std::vector<double> out, grad_rows, grad_weight, grad_bias;
};

inline GroupedResult results_of(const GroupedMatmulBackwardArgs& args) {
  return {elements_of(args.forward.out), elements_of(args.grad_rows), elements_of(args.grad_weight),
          elements_of(args.grad_bias)};
}

// By the reference, in fp64.
inline GroupedResult exact_results(GroupedMatmulBackwardArgs args) {
  Widened wide;
  GroupedMatmulArgs& f = args.forward;
  for (TensorView* view : {&f.rows, &f.weights.weight, &f.weights.bias, &f.out, &args.grad_out,
                           &args.grad_rows, &args.grad_weight, &args.grad_bias})
    wide.widen(*view);
  if (!grouped_matmul_reference(f) || !grouped_matmul_backward_reference(args)) return {};
  return results_of(args);
}

using GroupedTarget = UnitTarget<moe::grouped::Unit>;

// Those that compute the dtype.
inline std::vector<GroupedTarget> grouped_targets(DType dtype) {
  std::vector<GroupedTarget> chosen;
  for (const GroupedTarget& target : unit_targets(moe::grouped::units()))
    if (dtype == DType::bf16 || !target.test_unit || !target.test_unit->bf16_only) chosen.push_back(target);
  return chosen;
}

// Forward and backward.
inline Status run_grouped(const GroupedTarget& on, const GroupedMatmulBackwardArgs& args,
                          Executor& executor = serial_executor()) {
  const ForcedUnit forced(on);
  if (!forced.status()) return forced.status();
  if (Status s = grouped_matmul(args.forward, executor); !s) return s;
  return grouped_matmul_backward(args, executor);
}

}  // namespace tileformer::test
