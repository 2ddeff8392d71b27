#include "ops/moe/grouped_matmul/run.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "base/run_workers.h"

namespace tileformer::moe::grouped {
namespace {

// Packing less than this is done before another thread has woken up.
constexpr std::int64_t kSerialWords = 16384;

// A workspace as packed operands and then each worker's scratch. Null if it is too small.
char* cut(Workspace workspace, std::int64_t words, const Unit& unit, Workers* workers) {
  const std::size_t packed = (static_cast<std::size_t>(words) * unit.word_bytes + 63) / 64 * 64;
  const std::size_t needed = packed + workers->scratch_bytes * static_cast<std::size_t>(workers->count) + 64;
  if (!workspace.data || workspace.bytes < needed) return nullptr;
  char* base = reinterpret_cast<char*>((reinterpret_cast<std::uintptr_t>(workspace.data) + 63) / 64 * 64);
  workers->scratch = base + packed;
  return base;
}

Status too_small(Workspace workspace, std::size_t needed) {
  return Status::invalid("workspace: given " + std::to_string(workspace.data ? workspace.bytes : 0) +
                         " bytes, needed " + std::to_string(needed) + " for this plan and these arguments");
}

// Zeros in rows from `first` on. A zero is all zero bits in every dtype.
void clear_rows(const TensorView& view, std::int64_t first) {
  const std::size_t size = size_of(view.dtype);
  for (std::int64_t r = first; r < view.shape[0]; ++r)
    std::memset(static_cast<char*>(view.data) + r * view.stride[0] * static_cast<std::int64_t>(size), 0,
                size * static_cast<std::size_t>(view.shape[1]));
}

Problem problem_of(const TensorView& rows, const TensorView& weight) {
  return {rows.shape[0], weight.shape[0], weight.shape[1], weight.shape[2]};
}

}  // namespace

Status run_product(const GroupedMatmulArgs& args, const Unit& unit, const std::vector<std::int64_t>& offsets,
                   const GroupedMatmulPlan& plan, Workspace workspace, Executor& executor) {
  ProductArgs k = product_args(args, plan.out_slice);
  const std::int64_t words = wave_words(k, problem_of(args.rows, args.weights.weight), unit);
  const std::vector<ProductWave> waves = product_waves(k, offsets, unit, words);
  for (const ProductWave& wave : waves)
    for (const Group& group : wave.groups) k.max_groups = std::max(k.max_groups, group.index + 1);
  std::int64_t next_item = 0;
  k.workers = {std::min(plan.threads, executor.threads()), nullptr, unit.product_scratch(k), &next_item};
  k.x = cut(workspace, words, unit, &k.workers);
  if (!k.x) return too_small(workspace, plan.workspace_bytes);
  for (const ProductWave& wave : waves) {
    k.runs = wave.runs.data();
    k.runs_count = static_cast<std::int64_t>(wave.runs.size());
    k.groups = wave.groups.data();
    k.groups_count = static_cast<std::int64_t>(wave.groups.size());
    next_item = 0;
    run_workers(executor, wave.words <= kSerialWords ? 1 : k.workers.count, [&](int) { unit.pack(k); });
    next_item = 0;
    run_workers(executor, k.workers.count, [&](int worker) { unit.multiply(k, worker); });
  }
  clear_rows(args.out, offsets.back());
  return Status::ok();
}

namespace {

void run_bias_gradient(const GroupedMatmulBackwardArgs& args, const Unit& unit,
                       const std::vector<std::int64_t>& offsets, int workers, Executor& executor) {
  std::int64_t next_item = 0;
  BiasGradientArgs k{};
  k.grad_out = {args.grad_out.data, args.grad_out.stride[0]};
  k.dtype = args.grad_out.dtype;
  k.experts = args.grad_bias.shape[0];
  k.out_dim = args.grad_bias.shape[1];
  k.offsets = offsets.data();
  k.grad = args.grad_bias.data;
  k.grad_dtype = args.grad_bias.dtype;
  k.grad_expert = args.grad_bias.stride[0];
  k.workers = {workers, nullptr, 0, &next_item};
  run_workers(executor, workers, [&](int) { unit.bias_gradient(k); });
}

}  // namespace

Status run_weight_gradient(const GroupedMatmulBackwardArgs& args, const Unit& unit,
                           const std::vector<std::int64_t>& offsets, const GroupedMatmulBackwardPlan& plan,
                           Workspace workspace, Executor& executor) {
  const int workers = std::min(plan.threads, executor.threads());
  if (args.grad_bias) run_bias_gradient(args, unit, offsets, workers, executor);
  if (!args.grad_weight) return Status::ok();
  WeightGradientArgs k = weight_gradient_args(args, plan.weight_slice);
  const std::int64_t words = wave_words(k, problem_of(args.grad_out, args.grad_weight), unit);
  const std::vector<GradientWave> waves = gradient_waves(k, offsets, unit, words);
  for (const GradientWave& wave : waves)
    for (const Block& block : wave.blocks) k.max_groups = std::max(k.max_groups, block.groups);
  std::int64_t next_item = 0;
  k.workers = {workers, nullptr, unit.weight_gradient_scratch(k), &next_item};
  k.x = cut(workspace, words, unit, &k.workers);
  if (!k.x) return too_small(workspace, plan.workspace_bytes);
  for (const GradientWave& wave : waves) {
    k.blocks = wave.blocks.data();
    k.blocks_count = static_cast<std::int64_t>(wave.blocks.size());
    k.block_rows = wave.rows.data();
    k.block_rows_count = static_cast<std::int64_t>(wave.rows.size());
    next_item = 0;
    run_workers(executor, wave.words <= kSerialWords ? 1 : workers, [&](int) { unit.pack_columns(k); });
    next_item = 0;
    run_workers(executor, workers, [&](int worker) { unit.weight_gradient(k, worker); });
  }
  return Status::ok();
}

}  // namespace tileformer::moe::grouped
