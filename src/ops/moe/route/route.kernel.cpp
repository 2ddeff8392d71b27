// The choice of a token's experts and their weights, one row of logits at a time in L1.
#include "tile/unit.h"
//
#include "ops/moe/route/row_scores.h"

namespace tileformer::TILEFORMER_UNIT {
namespace {

using Args = route_op::RouteKernelArgs;

// What experts are compared by. NaN: cannot be chosen (any more). Each block of kStep keys has its largest in
// every lane beside it, so that a choice looks at one block in full.
struct Keys {
  alignas(64) float key[kMaxExperts], largest[kMaxExperts / kChains];
  int blocks;

  TF_MEMBER void find_largest(int block) {
    F m = set(-kInfinity);
    TF_UNROLL for (int c = 0; c < kChains; ++c) m = max(load(key + block * kStep + c * kVecLanes), m);
    store(largest + block * kVecLanes, m);
  }

  // key is given up to `padded`, a multiple of kStep.
  TF_MEMBER void prepare(int padded) {
    blocks = padded / kStep;
    for (int b = 0; b < blocks; ++b) find_largest(b);
  }

  // The largest, ties to the lower index; it is taken out.
  TF_MEMBER int take() {
    F of_all = set(-kInfinity);
    for (int b = 0; b < blocks; ++b) of_all = max(load(largest + b * kVecLanes), of_all);
    const F m = set(max_of_lanes(of_all));
    int b = 0;
    while (!any(equal(load(largest + b * kVecLanes), m))) ++b;
    int e = b * kStep;
    while (!any(equal(load(key + e), m))) e += kVecLanes;
    e += first_set(equal(load(key + e), m));
    key[e] = kNaN;
    find_largest(b);
    return e;
  }
};

// The sum of a group's two largest keys, or its only one.
TF_INLINE float group_score(const float* key, int size) {
  float first = key[0], second = -kInfinity;
  if (size == 1) return first;
  for (int i = 1; i < size; ++i) {
    const float x = key[i];
    second = max_of(second, min_of(x, first));
    first = max_of(first, x);
  }
  return first + second;
}

TF_NOINLINE void keep_top_groups(const Args& a, Keys& keys) {
  const int size = a.experts / a.num_groups;
  Keys groups;
  const int padded = static_cast<int>(round_up(a.num_groups, kStep));
  for (int g = 0; g < a.num_groups; ++g) groups.key[g] = group_score(keys.key + g * size, size);
  for (int g = a.num_groups; g < padded; ++g) groups.key[g] = -kInfinity;
  groups.prepare(padded);
  for (int n = 0; n < a.top_groups; ++n) groups.take();
  for (int g = 0; g < a.num_groups; ++g) {
    const bool kept = groups.key[g] != groups.key[g];  // taken out
    for (int e = g * size; !kept && e < (g + 1) * size; ++e) keys.key[e] = kNaN;
  }
}

TF_INLINE void find_keys(const Args& a, const LogitRow& row, Keys& keys) {
  if (!a.bias) {
    __builtin_memcpy(keys.key, row.x, static_cast<std::size_t>(row.padded) * sizeof(float));
    return;
  }
  float inverse = 1;
  if (a.scoring == RouteScoring::softmax)
    inverse = 1 / exponentials(row.x, row.largest, row.padded, keys.key);
  else
    sigmoids(row.x, row.padded, keys.key);
  for (int i = 0; i < row.padded; i += kVecLanes)
    store(keys.key + i, fma(load(keys.key + i), set(inverse), load(a.bias + i)));
  if (a.top_groups < a.num_groups) keep_top_groups(a, keys);
}

template <class T>
TF_NOINLINE void route_token(const Args& a, std::int64_t t) {
  LogitRow row;
  load_logits<T>(row, static_cast<const typename T::Element*>(a.logits.data) + t * a.logits.stride,
                 a.experts);
  if (TF_UNLIKELY(row.is_nan(a.scoring))) {
    for (int j = 0; j < a.k; ++j) {
      a.weights(t, j) = kNaN;
      a.chosen(t, j) = j;
    }
    return;
  }
  Keys keys;
  find_keys(a, row, keys);
  keys.prepare(row.padded);
  ChosenScores scores;
  for (int j = 0; j < a.k; ++j) {
    const int e = keys.take();
    a.chosen(t, j) = e;
    scores.x[j] = row.x[e];
  }
  score_chosen(scores, a.k, a.scoring, a.renormalize, row);
  for (int j = 0; j < a.k; ++j) a.weights(t, j) = scores.part[j] / scores.denominator * a.scale;
}

template <class T>
void run_tokens(const Args& a) {
  for (;;) {
    const std::int64_t first = __atomic_fetch_add(a.next_token, a.tokens_per_item, __ATOMIC_RELAXED);
    if (first >= a.tokens) break;
    for (std::int64_t t = first; t < min_of(first + a.tokens_per_item, a.tokens); ++t) route_token<T>(a, t);
  }
}

void run(const Args& a) {
  switch (a.dtype) {
    case DType::f32: return run_tokens<F32>(a);
    case DType::f16: return run_tokens<F16>(a);
    default: return run_tokens<BF16>(a);
  }
}

}  // namespace

extern const route_op::Unit route_unit;
const route_op::Unit route_unit = {TF_STRINGIZE(TILEFORMER_UNIT), run};

}  // namespace tileformer::TILEFORMER_UNIT
