// Compares the gradients that a target computes with the exact ones, measured by the error of the same
// precision.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "attention_accuracy.h"
#include "exact_backward.h"
#include "same_precision_backward.h"

namespace tileformer::test {

// The exact gradients of args and the errors that are allowed, computed once for all targets.
struct BackwardAccuracy {
  Status status;
  Gradients exact;
  std::array<double, kGradients> magnitude{},
      terms{};  // rms of the exact gradient; see same_precision_backward.h
  std::array<double, kGradients> same_precision_error{}, bound{};

  explicit BackwardAccuracy(const AttentionBackwardArgs& args, double factor = kCaseFactor) {
    status = exact_backward(args, &exact);
    if (!status) return;
    const SamePrecisionGradients same = same_precision_backward(args);
    // As for out: some roundings are always allowed, those of the dtype, and in fp32 those of the terms,
    // which are as uncertain as lse is.
    const DType dtype = args.forward.query.dtype;
    const double roundings = (dtype == DType::f32 ? 6 : 1) * unit_roundoff(dtype);
    const double term_roundings = factor * (2 + same.lse / 2) * unit_roundoff(DType::f32);
    terms = same.terms;
    for (int i = 0; i < kGradients; ++i) {
      magnitude[i] = rms(exact[i], std::vector<double>(exact[i].size()));
      same_precision_error[i] = rms(same.gradients[i], exact[i]);
      bound[i] =
          std::max({factor * same_precision_error[i], roundings * magnitude[i], term_roundings * terms[i]});
      // A few sums over everything may well be right by luck.
      if (exact[i].size() < 32) bound[i] = std::max(bound[i], factor / 20 * unit_roundoff(dtype) * terms[i]);
    }
  }

  // Empty if the gradients in args are good.
  std::string failure(const AttentionBackwardArgs& args) const {
    const Gradients results = gradients_of(args);
    std::string all;
    for (int i = 0; i < kGradients; ++i) {
      const std::string one = mismatch(kGradientNames[i], results[i], exact[i], bound[i]);
      if (!one.empty()) all += (all.empty() ? "" : "\n") + one;
    }
    return all;
  }
};

}  // namespace tileformer::test
