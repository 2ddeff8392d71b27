// The public entries: check, choose the unit, share the tokens out.
#include "tileformer/route.h"

#include <algorithm>
#include <limits>

#include "base/element.h"
#include "base/run_workers.h"
#include "ops/moe/route/check.h"
#include "ops/moe/route/drop.h"
#include "ops/moe/route/units.h"

namespace tileformer {

using namespace route_op;

namespace {

// A worker takes so many logits at a time: some 10 us of work, beside which the shared counter costs nothing.
constexpr std::int64_t kLogitsPerItem = 8192;

template <class T>
Slots<T> slots(const TensorView& view) {
  return {static_cast<T*>(view.data), view.stride[0], view.stride[1]};
}

Rows rows(const TensorView& view) { return {view.data, view.stride[0]}; }

// As kernels take it: in fp32, and -inf where there is no expert.
void fill_bias(const RouteArgs& args, float (&bias)[kMaxExperts]) {
  std::fill(std::begin(bias), std::end(bias), -std::numeric_limits<float>::infinity());
  for (std::int64_t e = 0; e < args.logits.shape[1]; ++e)
    bias[e] = args.bias ? static_cast<float>(load_element(args.bias.data, args.bias.dtype, e)) : 0;
}

template <class KernelArgs, class Unit>
void run_tokens(KernelArgs& k, const Unit& unit, Executor& executor) {
  std::int64_t next_token = 0;
  k.next_token = &next_token;
  k.tokens_per_item = std::max<std::int64_t>(1, kLogitsPerItem / k.experts);
  const std::int64_t items = (k.tokens + k.tokens_per_item - 1) / k.tokens_per_item;
  const int workers = static_cast<int>(std::min<std::int64_t>(items, executor.threads()));
  run_workers(executor, workers, [&](int) { unit.run(k); });
}

}  // namespace

Status route(const RouteArgs& args, Executor& executor) {
  if (args.logits && args.logits.dtype == DType::f64) return route_reference(args);
  if (Status s = check(args); !s) return s;
  const Unit* unit = nullptr;
  if (Status s = units().choose(DType::f32, &unit); !s) return s;

  RouteKernelArgs k{};
  k.logits = rows(args.logits);
  k.dtype = args.logits.dtype;
  k.tokens = args.logits.shape[0];
  k.experts = static_cast<int>(args.logits.shape[1]);
  k.k = static_cast<int>(args.weights.shape[1]);
  alignas(64) float bias[kMaxExperts];
  if (compares_scores(args)) {
    fill_bias(args, bias);
    k.bias = bias;
  }
  k.scoring = args.scoring;
  k.num_groups = static_cast<int>(args.num_groups);
  k.top_groups = static_cast<int>(args.top_groups);
  k.renormalize = args.renormalize;
  k.scale = static_cast<float>(args.scale);
  k.weights = slots<float>(args.weights);
  const TensorView& chosen = args.chosen ? args.chosen : args.experts;
  k.chosen = slots<std::int32_t>(chosen);
  run_tokens(k, *unit, executor);
  return drop_slots(args, chosen, executor);
}

Status route_backward(const RouteBackwardArgs& args, Executor& executor) {
  if (args.logits && args.logits.dtype == DType::f64) return route_backward_reference(args);
  if (Status s = check(args); !s) return s;
  const BackwardUnit* unit = nullptr;
  if (Status s = backward_units().choose(DType::f32, &unit); !s) return s;

  RouteBackwardKernelArgs k{};
  k.logits = rows(args.logits);
  k.grad_logits = rows(args.grad_logits);
  k.dtype = args.logits.dtype;
  k.tokens = args.logits.shape[0];
  k.experts = static_cast<int>(args.logits.shape[1]);
  k.k = static_cast<int>(args.experts.shape[1]);
  k.scoring = args.scoring;
  k.renormalize = args.renormalize;
  k.scale = static_cast<float>(args.scale);
  k.kept = slots<const std::int32_t>(args.experts);
  k.chosen = slots<const std::int32_t>(args.chosen ? args.chosen : args.experts);
  k.grad_weights = slots<const float>(args.grad_weights);
  run_tokens(k, *unit, executor);
  return Status::ok();
}

}  // namespace tileformer
