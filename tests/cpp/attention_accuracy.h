// Compares what a target computes with the exact result, measured by the error of the same precision.
#pragma once

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "accuracy.h"
#include "attention_data.h"
#include "exact_attention.h"
#include "same_precision_attention.h"

namespace tileformer::test {

// The exact result of args and the errors that are allowed, computed once for all targets.
struct Accuracy {
  Status status;
  AttentionResult exact;
  double magnitude = 0;             // rms of the exact out
  double same_precision_error = 0;  // rms error of out
  double out_bound = 0, lse_bound = 0;

  explicit Accuracy(const AttentionArgs& args, double factor = kCaseFactor) {
    status = exact_attention(args, &exact);
    if (!status) return;
    const AttentionResult same = same_precision_attention(args);
    const DType dtype = args.query.dtype;
    magnitude = rms(exact.out, std::vector<double>(exact.out.size()));
    same_precision_error = rms(same.out, exact.out);
    double lse_error = rms(same.lse, exact.lse);
    double largest = 1;
    for (double x : exact.lse) largest = std::isfinite(x) ? std::max(largest, std::abs(x)) : largest;
    // Decode multiplies int8 in whole numbers, queries and probabilities rounded to 15 bits: the codes
    // themselves have 7.
    if (args.key.dtype == DType::i8 || args.value.dtype == DType::i8) {
      same_precision_error = std::max(same_precision_error, 0x1p-16 * magnitude);
      lse_error = std::max(lse_error, 0x1p-16 * largest);
    }
    // The promise, twice the error of the same precision, holds over the table; one case may be above it.
    // With few elements that error can be small by luck, so some roundings are always allowed: in fp32 those
    // of score, exponential, sum and output, and an lse is the sum of a logarithm and a power of two of some
    // size; in the half types that of the output.
    const double out_roundings = dtype == DType::f32 ? 6 : 1, lse_roundings = dtype == DType::f32 ? 12 : 1;
    const double u = unit_roundoff(dtype);
    out_bound = std::max(factor * same_precision_error, out_roundings * u * magnitude);
    lse_bound = std::max(factor * lse_error, lse_roundings * u * largest);
  }

  // Empty if the outputs in args are good.
  std::string failure(const AttentionArgs& args) const {
    const AttentionResult result = result_of(args);
    std::string problem = mismatch("out", result.out, exact.out, out_bound);
    // Scores below -2e38 count as -2e38.
    const auto floored = [](std::vector<double> lse) {
      for (double& x : lse) x = std::isfinite(x) ? std::max(x, -2e38) : x;
      return lse;
    };
    return problem.empty() ? mismatch("lse", floored(result.lse), floored(exact.lse), lse_bound) : problem;
  }
};

}  // namespace tileformer::test
