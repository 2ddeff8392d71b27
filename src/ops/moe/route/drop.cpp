#include "ops/moe/route/drop.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <string>

#include "base/element.h"
#include "base/run_workers.h"
#include "ops/moe/dispatch.h"
#include "ops/moe/route/kernel_args.h"
#include "tileformer/workspace.h"

namespace tileformer::route_op {
namespace {

std::int64_t at(const TensorView& view, std::int64_t t, std::int64_t j) {
  return t * view.stride[0] + j * view.stride[1];
}

double weight(const RouteArgs& args, const moe::Pair& p) {
  return load_element(args.weights.data, args.weights.dtype, at(args.weights, p.token, p.slot));
}

void drop(const RouteArgs& args, std::int64_t t, std::int64_t j) {
  static_cast<std::int32_t*>(args.experts.data)[at(args.experts, t, j)] = -1;
  const std::int64_t i = at(args.weights, t, j);
  if (!std::isnan(load_element(args.weights.data, args.weights.dtype, i)))
    store_element(args.weights.data, args.weights.dtype, i, 0);
}

void copy(const TensorView& from, const TensorView& to) {
  for (std::int64_t t = 0; t < to.shape[0]; ++t)
    for (std::int64_t j = 0; j < to.shape[1]; ++j)
      static_cast<std::int32_t*>(to.data)[at(to, t, j)] =
          static_cast<const std::int32_t*>(from.data)[at(from, t, j)];
}

void drop_late_tokens(const RouteArgs& args) {
  std::int64_t served[kMaxExperts] = {};
  const auto* experts = static_cast<const std::int32_t*>(args.experts.data);
  for (std::int64_t t = 0; t < args.experts.shape[0]; ++t)
    for (std::int64_t j = 0; j < args.experts.shape[1]; ++j)
      if (served[experts[at(args.experts, t, j)]]++ >= args.capacity) drop(args, t, j);
}

// Of the pairs of one expert, which names a token once.
void drop_light_pairs(const RouteArgs& args, moe::Pair* first, moe::Pair* last) {
  if (last - first <= args.capacity) return;
  moe::Pair* const kept = first + args.capacity;
  std::nth_element(first, kept, last, [&](const moe::Pair& a, const moe::Pair& b) {
    const double x = weight(args, a), y = weight(args, b);
    if (std::isnan(x) != std::isnan(y)) return std::isnan(x);
    return x > y || (!(x < y) && a.token < b.token);
  });
  for (moe::Pair* p = kept; p < last; ++p) drop(args, p->token, p->slot);
}

Status drop_light_pairs(const RouteArgs& args, Executor& executor) {
  static thread_local ScratchBuffer scratch;
  const std::size_t bytes = static_cast<std::size_t>(args.experts.elements()) * sizeof(moe::Pair);
  const Workspace workspace = scratch.reserve(bytes);
  if (workspace.data == nullptr)
    return Status::out_of_memory("no memory for " + std::to_string(bytes) + " bytes of scratch");
  const std::int64_t num_experts = args.logits.shape[1];
  std::int64_t offset[kMaxExperts + 2];
  const moe::Dispatch sorted{offset, static_cast<moe::Pair*>(workspace.data)};
  if (Status s = moe::dispatch(args.experts, num_experts, sorted); !s) return s;
  std::atomic<std::int64_t> next{0};
  const int workers = static_cast<int>(std::min<std::int64_t>(num_experts, executor.threads()));
  run_workers(executor, workers, [&](int) {
    for (std::int64_t e; (e = next.fetch_add(1, std::memory_order_relaxed)) < num_experts;)
      drop_light_pairs(args, sorted.pair + offset[e], sorted.pair + offset[e + 1]);
  });
  return Status::ok();
}

}  // namespace

Status drop_slots(const RouteArgs& args, const TensorView& chosen, Executor& executor) {
  if (chosen.data != args.experts.data) copy(chosen, args.experts);
  if (args.capacity < 0) return Status::ok();
  if (args.drop == RouteDrop::score) return drop_light_pairs(args, executor);
  drop_late_tokens(args);
  return Status::ok();
}

}  // namespace tileformer::route_op
