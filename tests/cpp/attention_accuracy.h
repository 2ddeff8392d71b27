// Compares what a target computes with the exact result, measured by the error of the same precision.
#pragma once

#include <algorithm>
#include <cmath>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "attention_data.h"
#include "exact_attention.h"
#include "same_precision_attention.h"

namespace tileformer::test {

// Half the distance from 1 to the next number.
inline double unit_roundoff(DType dtype) {
  switch (dtype) {
    case DType::bf16: return 0x1p-8;
    case DType::f16: return 0x1p-11;
    case DType::f32: return 0x1p-24;
    default: return 0x1p-53;
  }
}

inline double rms(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (std::isfinite(b[i])) sum += (a[i] - b[i]) * (a[i] - b[i]);
  }
  return a.empty() ? 0 : std::sqrt(sum / static_cast<double>(a.size()));
}

// Empty if the rms error of finite elements is within the bound, and all others are what they should be.
inline std::string mismatch(const char* what, const std::vector<double>& result,
                            const std::vector<double>& exact, double bound) {
  std::ostringstream text;
  for (std::size_t i = 0; i < exact.size(); ++i) {
    if (std::isfinite(exact[i]) ? std::isfinite(result[i]) : result[i] == exact[i]) continue;
    text << what << " element " << i << " is " << result[i] << ", exactly " << exact[i];
    return text.str();
  }
  const double error = rms(result, exact);
  if (error <= bound) return "";
  std::size_t worst = 0;
  for (std::size_t i = 0; i < exact.size(); ++i) {
    if (std::abs(result[i] - exact[i]) > std::abs(result[worst] - exact[worst])) worst = i;
  }
  text << what << ": rms error " << error << ", allowed " << bound << "; worst at element " << worst << ": "
       << result[worst] << ", exactly " << exact[worst];
  return text.str();
}

// How many times the error of the same precision: over the case table, in a case of it, and in a random
// problem, where a few rows may be lucky in one computation and unlucky in the other.
constexpr double kTableFactor = 2, kCaseFactor = 2.5, kRandomFactor = 10;

// Errors relative to the exact result, over the cases of the table, by what was computed on which target.
class TableErrors {
 public:
  void add(const std::string& key, double error, double same_precision_error, double magnitude) {
    if (magnitude == 0) return;
    Sums& sums = sums_[key];
    sums.target += error / magnitude * (error / magnitude);
    sums.same_precision += same_precision_error / magnitude * (same_precision_error / magnitude);
  }
  // What exceeds kTableFactor; empty if nothing.
  std::string failure() const {
    std::ostringstream text;
    for (const auto& [key, sums] : sums_) {
      const double factor = std::sqrt(sums.target / sums.same_precision);
      if (factor > kTableFactor)
        text << key << ": " << factor << " times the error of the same precision, over the table\n";
    }
    return text.str();
  }

 private:
  struct Sums {
    double target = 0, same_precision = 0;  // squared
  };
  std::map<std::string, Sums> sums_;
};

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
