// Rows of random logits between guard pages, and cross_entropy on every unit that this machine can run.
#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "elements.h"
#include "guarded_memory.h"
#include "ops/cross_entropy/units.h"
#include "tileformer/cross_entropy.h"
#include "unit_targets.h"

namespace tileformer::test {

struct CrossEntropyShape {
  std::int64_t rows = 3, vocab = 100;
  DType dtype = DType::f32;
  std::int64_t gap = 0;  // elements between the end of a row and the next
  double spread = 3;     // standard deviation of the logits
};

// Owns the tensors of one call. Targets are random, none is ignored.
class CrossEntropyProblem {
 public:
  explicit CrossEntropyProblem(const CrossEntropyShape& shape, unsigned seed = 1, Edge edge = Edge::end)
      : logits_(bytes_of(shape), edge),
        target_(static_cast<std::size_t>(shape.rows) * 8, edge),
        loss_(static_cast<std::size_t>(shape.rows) * size_of(statistics(shape.dtype)), edge),
        lse_(static_cast<std::size_t>(shape.rows) * size_of(statistics(shape.dtype)), edge),
        row_scale_(static_cast<std::size_t>(shape.rows) * size_of(statistics(shape.dtype)), edge) {
    const DType f = statistics(shape.dtype);
    args.logits =
        TensorView(logits_.data(), shape.dtype, {shape.rows, shape.vocab}, {shape.vocab + shape.gap, 1});
    args.target = TensorView::dense(target_.data(), DType::i64, {shape.rows});
    args.loss = TensorView::dense(loss_.data(), f, {shape.rows});
    args.lse = TensorView::dense(lse_.data(), f, {shape.rows});
    args.gradient = true;
    std::mt19937 generator(seed);
    std::normal_distribution<double> normal(0, shape.spread);
    std::uniform_int_distribution<std::int64_t> any(0, shape.vocab - 1);
    for_each_index(args.logits, [&](const Index& at) { set(args.logits, at, normal(generator)); });
    for (std::int64_t r = 0; r < shape.rows; ++r) target(r) = any(generator);
  }

  std::int64_t& target(std::int64_t row) { return static_cast<std::int64_t*>(target_.data())[row]; }
  void set_logit(std::int64_t row, std::int64_t j, double x) { set(args.logits, {row, j}, x); }

  // Factors that differ from row to row.
  void scale_rows() {
    args.row_scale = TensorView::dense(row_scale_.data(), args.loss.dtype, {args.logits.shape[0]});
    for (std::int64_t r = 0; r < args.logits.shape[0]; ++r) set(args.row_scale, {r}, 0.25 * double(r) - 0.5);
  }

  CrossEntropyArgs args;

 private:
  static DType statistics(DType dtype) { return dtype == DType::f64 ? DType::f64 : DType::f32; }
  static std::size_t bytes_of(const CrossEntropyShape& s) {
    const std::int64_t elements = s.rows == 0 ? 0 : (s.rows - 1) * (s.vocab + s.gap) + s.vocab;
    return static_cast<std::size_t>(elements) * size_of(s.dtype);
  }

  GuardedMemory logits_, target_, loss_, lse_, row_scale_;
};

struct CrossEntropyResult {
  std::vector<double> loss, lse, gradient;
};

inline CrossEntropyResult results_of(const CrossEntropyArgs& args) {
  return {elements_of(args.loss), elements_of(args.lse), elements_of(args.logits)};
}

using CrossEntropyTarget = UnitTarget<cross_entropy_op::Unit>;

inline const std::vector<CrossEntropyTarget>& cross_entropy_targets() {
  static const std::vector<CrossEntropyTarget> all = unit_targets(cross_entropy_op::units());
  return all;
}

inline Status run_cross_entropy(const CrossEntropyTarget& on, const CrossEntropyArgs& args,
                                Executor& executor = serial_executor()) {
  const ForcedUnit forced(on);
  if (!forced.status()) return forced.status();
  return cross_entropy(args, executor);
}

}  // namespace tileformer::test
