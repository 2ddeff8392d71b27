// A row of logits in fp32, and its scores. Included by kernels only.
#pragma once

#include "ops/moe/route/kernel_args.h"

namespace tileformer::TILEFORMER_UNIT {

using route_op::kMaxExperts;

// Independent accumulators: a maximum or a sum would wait for its own latency.
inline constexpr int kChains = 4;
inline constexpr int kStep = kChains * kVecLanes;
static_assert(kMaxExperts % kStep == 0);

struct LogitRow {
  int padded;     // experts, rounded up to steps
  float largest;  // NaN aside
  bool has_nan;
  alignas(64) float x[kMaxExperts];  // -inf beyond the experts

  // Whose weights are NaN, whatever is chosen.
  TF_MEMBER bool is_nan(RouteScoring scoring) const {
    return has_nan || (scoring == RouteScoring::softmax && (largest == kInfinity || largest == -kInfinity));
  }
};

template <class T>
TF_INLINE void load_logits(LogitRow& row, const typename T::Element* logits, int experts) {
  row.padded = static_cast<int>(round_up(experts, kStep));
  F largest = set(-kInfinity);
  M numbers = equal(zero(), zero());
  for (int i = 0; i < row.padded; i += kVecLanes) {
    F x = load_up_to<T>(logits + i, experts - i);
    numbers = both(numbers, equal(x, x));
    store(row.x + i, x);
    if (TF_UNLIKELY(i + kVecLanes > experts)) {
      for (int e = max_of(i, experts); e < i + kVecLanes; ++e) row.x[e] = -kInfinity;
      x = load(row.x + i);
    }
    largest = max(x, largest);  // a NaN loses
  }
  row.has_nan = !all(numbers);
  row.largest = max_of_lanes(largest);
}

// e[i] = exp(x[i] - m) for `padded` elements, and their sum.
TF_INLINE float exponentials(const float* x, float m, int padded, float* e) {
  F sum = zero();
  for (int i = 0; i < padded; i += kVecLanes) {
    const F y = exp_minus(load(x + i), set(m));
    store(e + i, y);
    sum = add(sum, y);
  }
  return sum_of_lanes(sum);
}

// s[i] = sigmoid(x[i]), and their sum.
TF_INLINE float sigmoids(const float* x, int padded, float* s) {
  F sum = zero();
  for (int i = 0; i < padded; i += kVecLanes) {
    const F y = sigmoid(load(x + i));
    store(s + i, y);
    sum = add(sum, y);
  }
  return sum_of_lanes(sum);
}

// What the chosen experts of a row add to the sum of their weights' denominators: score = part / denominator.
struct ChosenScores {
  alignas(64) float x[kMaxExperts], part[kMaxExperts];
  float denominator;
};

// x of `k` chosen experts is given.
TF_INLINE void score_chosen(ChosenScores& c, int k, RouteScoring scoring, bool renormalize,
                            const LogitRow& row) {
  const int padded = static_cast<int>(round_up(k, kVecLanes));
  for (int j = k; j < padded; ++j) c.x[j] = -kInfinity;
  if (scoring == RouteScoring::sigmoid) {
    const float sum = sigmoids(c.x, padded, c.part);
    c.denominator = renormalize ? sum + static_cast<float>(route_op::kSigmoidFloor) : 1;
    return;
  }
  // Of the chosen ones alone, so that it does not vanish where all others are far larger.
  float m = row.largest;
  if (renormalize) {
    m = c.x[0];
    for (int j = 1; j < k; ++j) m = max_of(m, c.x[j]);
  }
  const float sum = exponentials(c.x, m, padded, c.part);
  c.denominator = sum;
  if (renormalize) return;
  F all = zero();
  for (int i = 0; i < row.padded; i += kVecLanes) all = add(all, exp_minus(load(row.x + i), set(m)));
  c.denominator = sum_of_lanes(all);
}

}  // namespace tileformer::TILEFORMER_UNIT
