// Errors of results, and how many times the error of a plain computation in the same precision they may be.
#pragma once

#include <cmath>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "base/element.h"

namespace tileformer::test {

// As a tensor of the dtype would hold it.
inline double rounded(double x, DType dtype) {
  double storage = 0;
  store_element(&storage, dtype, 0, x);
  return load_element(&storage, dtype, 0);
}

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
    const bool as_exact = std::isnan(exact[i])      ? std::isnan(result[i])
                          : std::isfinite(exact[i]) ? std::isfinite(result[i])
                                                    : result[i] == exact[i];
    if (as_exact) continue;
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

}  // namespace tileformer::test
