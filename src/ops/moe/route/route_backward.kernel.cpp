// The gradient of a row of logits from that of its weights. With q the chosen scores over their denominator,
// g the gradient of the weights times scale:
//
//   softmax   renormalized: d[e] = q[e] (g[e] - <g, q>) of the chosen; else the same of all, g = 0 elsewhere
//   sigmoid   renormalized: d[e] = q[e] (1 - score[e]) (g[e] - <g, q>) of the chosen; else without <g, q>
#include "tile/unit.h"
//
#include "ops/moe/route/row_scores.h"

namespace tileformer::TILEFORMER_UNIT {
namespace {

using Args = route_op::RouteBackwardKernelArgs;

template <class T>
TF_INLINE void store_gradient(typename T::Element* to, const float* d, int experts) {
  for (int i = 0; i < experts; i += kVecLanes) {
    if (TF_LIKELY(experts - i >= kVecLanes))
      store_elements(to + i, load(d + i), T{});
    else
      store_some<T>(to + i, load(d + i), experts - i);
  }
}

// Softmax over all experts: those that were not chosen have part in the denominator.
TF_INLINE void add_unchosen(const LogitRow& row, float denominator, float mean, float* d) {
  for (int i = 0; i < row.padded; i += kVecLanes) {
    const F p = mul(exp_minus(load(row.x + i), set(row.largest)), set(1 / denominator));
    store(d + i, mul(p, sub(load(d + i), set(mean))));
  }
}

TF_INLINE void gradient_of(const Args& a, std::int64_t t, const LogitRow& row, float* d) {
  for (int i = 0; i < row.padded; i += kVecLanes) store(d + i, zero());
  ChosenScores scores;
  for (int j = 0; j < a.k; ++j) scores.x[j] = row.x[a.chosen(t, j)];
  score_chosen(scores, a.k, a.scoring, a.renormalize, row);

  const bool softmax = a.scoring == RouteScoring::softmax;
  float g[kMaxExperts], mean = 0;
  for (int j = 0; j < a.k; ++j) {
    g[j] = a.kept(t, j) < 0 ? 0 : a.grad_weights(t, j) * a.scale;
    scores.part[j] /= scores.denominator;
    mean += g[j] * scores.part[j];
  }
  if (softmax && !a.renormalize) {
    for (int j = 0; j < a.k; ++j) d[a.chosen(t, j)] += g[j];
    return add_unchosen(row, scores.denominator, mean, d);
  }
  if (!a.renormalize) mean = 0;
  if (!softmax) {
    // 1 - score: the sigmoid of -x.
    for (int j = 0; j < a.k; ++j) scores.x[j] = -scores.x[j];
    alignas(64) float rest[kMaxExperts];
    sigmoids(scores.x, static_cast<int>(round_up(a.k, kVecLanes)), rest);
    for (int j = 0; j < a.k; ++j) scores.part[j] *= rest[j];
  }
  for (int j = 0; j < a.k; ++j) d[a.chosen(t, j)] += scores.part[j] * (g[j] - mean);
}

template <class T>
TF_NOINLINE void token_gradient(const Args& a, std::int64_t t) {
  using Element = typename T::Element;
  LogitRow row;
  load_logits<T>(row, static_cast<const Element*>(a.logits.data) + t * a.logits.stride, a.experts);
  alignas(64) float d[kMaxExperts];
  if (TF_UNLIKELY(row.is_nan(a.scoring)))
    for (int i = 0; i < row.padded; i += kVecLanes) store(d + i, set(kNaN));
  else
    gradient_of(a, t, row, d);
  store_gradient<T>(static_cast<Element*>(a.grad_logits.data) + t * a.grad_logits.stride, d, a.experts);
}

template <class T>
void run_tokens(const Args& a) {
  for (;;) {
    const std::int64_t first = __atomic_fetch_add(a.next_token, a.tokens_per_item, __ATOMIC_RELAXED);
    if (first >= a.tokens) break;
    for (std::int64_t t = first; t < min_of(first + a.tokens_per_item, a.tokens); ++t)
      token_gradient<T>(a, t);
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

extern const route_op::BackwardUnit route_backward_unit;
const route_op::BackwardUnit route_backward_unit = {TF_STRINGIZE(TILEFORMER_UNIT), run};

}  // namespace tileformer::TILEFORMER_UNIT
