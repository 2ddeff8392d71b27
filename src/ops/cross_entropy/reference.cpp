// The definition, row by row, in fp64.
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "base/element.h"
#include "ops/cross_entropy/check.h"

namespace tileformer {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

void set(const TensorView& view, std::int64_t row, double value) {
  if (view) store_element(view.data, view.dtype, row * view.stride[0], value);
}

double log_sum_exp(const std::vector<double>& x) {
  double largest = -kInfinity, sum = 0;
  for (double v : x) largest = std::max(largest, v);
  if (largest == -kInfinity && std::none_of(x.begin(), x.end(), [](double v) { return std::isnan(v); }))
    return -kInfinity;
  for (double v : x) sum += std::exp(v - largest);
  return largest + std::log(sum);
}

void one_row(const CrossEntropyArgs& args, std::int64_t row) {
  const TensorView& logits = args.logits;
  const std::int64_t vocab = logits.shape[1], start = row * logits.stride[0];
  const std::int64_t target = static_cast<const std::int64_t*>(args.target.data)[row * args.target.stride[0]];
  const double smoothing = args.label_smoothing;
  if (target == args.ignore_index) {
    set(args.loss, row, 0);
    set(args.lse, row, 0);
    for (std::int64_t j = 0; args.gradient && j < vocab; ++j)
      store_element(logits.data, logits.dtype, start + j, 0);
    return;
  }

  std::vector<double> x(vocab), slope(vocab, 1.0);  // softcap and its derivative
  for (std::int64_t j = 0; j < vocab; ++j) {
    x[j] = load_element(logits.data, logits.dtype, start + j);
    if (args.softcap > 0) {
      const double t = std::tanh(x[j] / args.softcap);
      x[j] = args.softcap * t;
      slope[j] = 1 - t * t;
    }
  }
  const double lse = log_sum_exp(x);
  double loss = (1 - smoothing) * (lse - x[target]);
  if (smoothing > 0) {
    for (double v : x) loss += smoothing / double(vocab) * (lse - v);
  }
  if (args.z_loss > 0) loss += args.z_loss * lse * lse;
  set(args.loss, row, loss);
  set(args.lse, row, lse);
  if (!args.gradient) return;

  const double scale =
      args.row_scale ? load_element(args.row_scale.data, args.row_scale.dtype, row * args.row_scale.stride[0])
                     : 1;
  for (std::int64_t j = 0; j < vocab; ++j) {
    const double p = std::exp(x[j] - lse),
                 wanted = (j == target ? 1 - smoothing : 0) + smoothing / double(vocab);
    const double gradient = (1 + 2 * args.z_loss * lse) * p - wanted;
    store_element(logits.data, logits.dtype, start + j, scale * gradient * slope[j]);
  }
}

}  // namespace

Status cross_entropy_reference(const CrossEntropyArgs& args) {
  if (Status s = cross_entropy_op::check(args); !s) return s;
  for (std::int64_t row = 0; row < args.logits.shape[0]; ++row) one_row(args, row);
  return Status::ok();
}

}  // namespace tileformer
