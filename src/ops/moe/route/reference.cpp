// The definition, token by token, in fp64.
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "base/element.h"
#include "ops/moe/route/check.h"
#include "ops/moe/route/drop.h"
#include "ops/moe/route/kernel_args.h"

namespace tileformer {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

using Vector = std::vector<double>;

double get(const TensorView& view, std::int64_t t, std::int64_t j) {
  return load_element(view.data, view.dtype, t * view.stride[0] + j * view.stride[1]);
}
void set(const TensorView& view, std::int64_t t, std::int64_t j, double x) {
  store_element(view.data, view.dtype, t * view.stride[0] + j * view.stride[1], x);
}

Vector row_of(const TensorView& logits, std::int64_t t) {
  Vector x;
  for (std::int64_t e = 0; e < logits.shape[1]; ++e) x.push_back(get(logits, t, e));
  return x;
}

bool is_nan(const Vector& x, RouteScoring scoring) {
  if (std::any_of(x.begin(), x.end(), [](double v) { return std::isnan(v); })) return true;
  return scoring == RouteScoring::softmax && std::isinf(*std::max_element(x.begin(), x.end()));
}

// 1 / (1 + exp(-x)), 0 with no detour over infinity.
double sigmoid(double x) { return x < 0 ? std::exp(x) / (1 + std::exp(x)) : 1 / (1 + std::exp(-x)); }

Vector softmax(const Vector& x) {
  const double m = *std::max_element(x.begin(), x.end());
  double sum = 0;
  Vector p;
  for (double v : x) p.push_back(std::exp(v - m));
  for (double v : p) sum += v;
  for (double& v : p) v /= sum;
  return p;
}

Vector scores_of(const Vector& x, RouteScoring scoring) {
  if (scoring == RouteScoring::softmax) return softmax(x);
  Vector s;
  for (double v : x) s.push_back(sigmoid(v));
  return s;
}

// Indices of the n largest, ties to the lower index. Those of -inf come last.
std::vector<std::int64_t> largest(const Vector& keys, std::int64_t n) {
  std::vector<std::int64_t> order;
  for (std::size_t i = 0; i < keys.size(); ++i) order.push_back(static_cast<std::int64_t>(i));
  std::stable_sort(order.begin(), order.end(), [&](std::int64_t a, std::int64_t b) {
    return keys[std::size_t(a)] > keys[std::size_t(b)];
  });
  order.resize(static_cast<std::size_t>(n));
  return order;
}

double group_score(Vector group) {
  std::sort(group.rbegin(), group.rend());
  return group.size() == 1 ? group[0] : group[0] + group[1];
}

// The experts that can be chosen, in rising order.
std::vector<std::int64_t> candidates(const RouteArgs& args, const Vector& keys) {
  const std::int64_t size = args.logits.shape[1] / args.num_groups;
  Vector scores;
  for (std::int64_t g = 0; g < args.num_groups; ++g)
    scores.push_back(group_score(Vector(keys.begin() + g * size, keys.begin() + (g + 1) * size)));
  std::vector<std::int64_t> kept = largest(scores, args.top_groups), experts;
  std::sort(kept.begin(), kept.end());
  for (std::int64_t g : kept)
    for (std::int64_t e = g * size; e < (g + 1) * size; ++e) experts.push_back(e);
  return experts;
}

std::vector<std::int64_t> choose(const RouteArgs& args, const Vector& x, std::int64_t k) {
  Vector keys = x;
  if (route_op::compares_scores(args)) {
    keys = scores_of(x, args.scoring);
    for (std::size_t e = 0; args.bias && e < keys.size(); ++e)
      keys[e] += load_element(args.bias.data, args.bias.dtype, std::int64_t(e));
  }
  const std::vector<std::int64_t> experts = candidates(args, keys);
  Vector of_candidates;
  for (std::int64_t e : experts) of_candidates.push_back(keys[std::size_t(e)]);
  std::vector<std::int64_t> chosen = largest(of_candidates, k);
  for (std::int64_t& e : chosen) e = experts[std::size_t(e)];
  return chosen;
}

// Scores over their denominator; `rest` is 1 - score.
struct Shares {
  Vector share, rest;
  double denominator = 1;
};

Shares shares_of(const Vector& x, const std::vector<std::int64_t>& chosen, RouteScoring scoring,
                 bool renormalize) {
  Vector of_chosen;
  for (std::int64_t e : chosen) of_chosen.push_back(x[std::size_t(e)]);
  Shares s;
  if (scoring == RouteScoring::softmax) {
    const Vector p = softmax(renormalize ? of_chosen : x);
    for (std::size_t j = 0; j < chosen.size(); ++j)
      s.share.push_back(p[renormalize ? j : std::size_t(chosen[j])]);
    return s;
  }
  double sum = 0;
  for (double v : of_chosen) {
    s.share.push_back(sigmoid(v));
    s.rest.push_back(sigmoid(-v));
    sum += s.share.back();
  }
  if (renormalize) s.denominator = sum + route_op::kSigmoidFloor;
  for (double& v : s.share) v /= s.denominator;
  return s;
}

void route_token(const RouteArgs& args, const TensorView& to, std::int64_t t) {
  const Vector x = row_of(args.logits, t);
  const std::int64_t k = args.weights.shape[1];
  if (is_nan(x, args.scoring)) {
    for (std::int64_t j = 0; j < k; ++j) {
      set(args.weights, t, j, kNaN);
      set(to, t, j, double(j));
    }
    return;
  }
  const std::vector<std::int64_t> chosen = choose(args, x, k);
  const Shares shares = shares_of(x, chosen, args.scoring, args.renormalize);
  for (std::int64_t j = 0; j < k; ++j) {
    set(args.weights, t, j, args.scale * shares.share[std::size_t(j)]);
    set(to, t, j, double(chosen[std::size_t(j)]));
  }
}

void token_gradient(const RouteBackwardArgs& args, std::int64_t t) {
  const Vector x = row_of(args.logits, t);
  const std::int64_t k = args.experts.shape[1];
  Vector d(x.size(), is_nan(x, args.scoring) ? kNaN : 0.0);
  if (!is_nan(x, args.scoring)) {
    const TensorView& choice = args.chosen ? args.chosen : args.experts;
    std::vector<std::int64_t> chosen;
    Vector g;
    for (std::int64_t j = 0; j < k; ++j) {
      chosen.push_back(static_cast<std::int64_t>(get(choice, t, j)));
      g.push_back(get(args.experts, t, j) < 0 ? 0 : args.scale * get(args.grad_weights, t, j));
    }
    const Shares s = shares_of(x, chosen, args.scoring, args.renormalize);
    double mean = 0;
    for (std::size_t j = 0; j < g.size(); ++j) mean += g[j] * s.share[j];
    const bool softmax_of_all = args.scoring == RouteScoring::softmax && !args.renormalize;
    if (softmax_of_all) {
      const Vector p = softmax(x);
      for (std::size_t e = 0; e < d.size(); ++e) d[e] = -p[e] * mean;
    }
    if (!args.renormalize) mean = 0;
    for (std::size_t j = 0; j < g.size(); ++j) {
      const double slope = args.scoring == RouteScoring::sigmoid ? s.rest[j] : 1;
      d[std::size_t(chosen[j])] += s.share[j] * slope * (g[j] - mean);
    }
  }
  for (std::size_t e = 0; e < d.size(); ++e) set(args.grad_logits, t, std::int64_t(e), d[e]);
}

}  // namespace

Status route_reference(const RouteArgs& args) {
  if (Status s = route_op::check(args); !s) return s;
  const TensorView& chosen = args.chosen ? args.chosen : args.experts;
  for (std::int64_t t = 0; t < args.logits.shape[0]; ++t) route_token(args, chosen, t);
  return route_op::drop_slots(args, chosen, serial_executor());
}

Status route_backward_reference(const RouteBackwardArgs& args) {
  if (Status s = route_op::check(args); !s) return s;
  for (std::int64_t t = 0; t < args.logits.shape[0]; ++t) token_gradient(args, t);
  return Status::ok();
}

}  // namespace tileformer
