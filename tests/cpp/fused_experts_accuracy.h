// Compares what a target computes with the exact result, measured by the error of the same precision.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "same_precision_experts.h"
#include "widened.h"

namespace tileformer::test {

// fp64 copies of everything but codes, with their scales, and indices.
inline void widen(Widened& widened, FusedExpertsArgs& args) {
  for (TensorView* view : {&args.hidden, &args.weights, &args.gate_up.bias, &args.down.bias, &args.out})
    widened.widen(*view);
  for (ExpertWeights* w : {&args.gate_up, &args.down})
    if (is_floating(w->weight.dtype)) widened.widen(w->weight);
}

// What is compared: the exact elements and the error that is allowed.
struct ExpertsBound {
  std::vector<double> exact;
  double magnitude = 0, same_precision_error = 0, bound = 0;

  ExpertsBound() = default;
  ExpertsBound(std::vector<double> elements, const ExpertsSums& same, DType computed, DType stored,
               double factor)
      : exact(std::move(elements)) {
    const double u = unit_roundoff(computed);
    magnitude = rms(std::vector<double>(exact.size()), exact);
    same_precision_error = rms(same.rounded_to(stored), exact);
    // The promise, twice the error of the same precision, holds over the table; one case may be above it.
    // Some roundings are always allowed, those of the dtype, and those of the terms in fp32.
    bound = std::max({factor * same_precision_error, (computed == DType::f32 ? 6 : 1) * u * magnitude,
                      factor * unit_roundoff(DType::f32) * same.terms()});
    // A few sums may well be right by luck.
    if (exact.size() < 256) bound = std::max(bound, factor / 2 * u * same.terms());
  }
  std::string failure(const char* what, const TensorView& result) const {
    return mismatch(what, elements_of(result), exact, bound);
  }
};

struct ExpertsAccuracy {
  Status status;
  ExpertsBound out;
  std::vector<double> gate_up;  // exact, of gate_up_out

  explicit ExpertsAccuracy(const FusedExpertsArgs& args, double factor = kCaseFactor) {
    Widened widened;
    FusedExpertsArgs wide = args;
    widen(widened, wide);
    widened.widen(wide.gate_up_out);
    status = fused_experts_reference(wide);
    if (!status) return;
    const DType dtype = args.hidden.dtype;
    out = ExpertsBound(elements_of(wide.out), SamePrecisionExperts(args).out, dtype, dtype, factor);
    gate_up = elements_of(wide.gate_up_out);
  }

  // Empty if the outputs in args are good.
  std::string failure(const FusedExpertsArgs& args) const {
    std::string text = out.failure("out", args.out);
    if (!text.empty() || !args.gate_up_out) return text;
    // One rounding of a sum in fp32; with codes one of each weight, or of each activation to 15 bits of the
    // largest. Rows beyond the valid pairs stay NaN.
    const double size = rms(std::vector<double>(gate_up.size()), gate_up);
    const bool codes = !is_floating(args.gate_up.weight.dtype);
    const double roundings = unit_roundoff(args.hidden.dtype) * (codes ? 2 : 1) + (codes ? 0x1p-14 : 0);
    return mismatch("gate_up_out", elements_of(args.gate_up_out), gate_up,
                    (roundings + 8 * unit_roundoff(DType::f32)) * size);
  }
};

struct ExpertsBackwardAccuracy {
  Status status;
  std::array<ExpertsBound, kExpertsGradients> gradients;

  // args.forward.gate_up_out, if present, has been written.
  explicit ExpertsBackwardAccuracy(const FusedExpertsBackwardArgs& args, double factor = kCaseFactor) {
    Widened widened;
    FusedExpertsBackwardArgs wide = args;
    widen(widened, wide.forward);
    widened.widen(wide.forward.gate_up_out);
    for (TensorView* view : {&wide.grad_out, &wide.grad_hidden, &wide.grad_gate_up, &wide.grad_down,
                             &wide.grad_weights, &wide.grad_gate_up_bias, &wide.grad_down_bias})
      widened.widen(*view);
    status = fused_experts_backward_reference(wide);
    if (!status) return;
    const SamePrecisionExperts same(args);
    for (int i = 0; i < kExpertsGradients; ++i)
      gradients[i] = ExpertsBound(elements_of(gradient_view(wide, i)), same.gradients[i],
                                  args.forward.hidden.dtype, gradient_view(args, i).dtype, factor);
  }

  // Empty if the gradients in args are good.
  std::string failure(const FusedExpertsBackwardArgs& args) const {
    std::string all;
    for (int i = 0; i < kExpertsGradients; ++i) {
      const std::string one = gradients[i].failure(kExpertsGradientNames[i], gradient_view(args, i));
      if (!one.empty()) all += (all.empty() ? "" : "\n") + one;
    }
    return all;
  }
};

}  // namespace tileformer::test
