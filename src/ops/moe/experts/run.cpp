#include "ops/moe/experts/run.h"

#include <algorithm>
#include <string>

#include "base/run_workers.h"

namespace tileformer::moe {
namespace {

// Packing less than this is done before another thread has woken up.
constexpr std::int64_t kSerialWords = 16384;

}  // namespace

Status run_forward(const FusedExpertsArgs& args, const Problem& problem, const Unit& unit,
                   const PairLists& pairs, const FusedExpertsPlan& plan, Workspace workspace,
                   Executor& executor) {
  KernelArgs k = kernel_args(args, problem, {plan.inter_slice, plan.hidden_slice}, unit.row_step);
  const std::vector<Wave> waves = work_list(pairs.offsets, problem, unit, k, plan.wave_pairs);
  for (const Wave& wave : waves)
    for (const Group& group : wave.groups)
      k.max_groups = std::max<std::int64_t>(k.max_groups, group.index + 1);

  const bool needs_sum = k.dtype != DType::f32;
  const SharedMemory m = shared_memory(problem, unit, k, plan.wave_pairs, needs_sum);
  k.scratch_bytes = unit.scratch_bytes(k);
  const int workers = std::min(plan.threads, executor.threads());
  k.workers = workers;
  const std::size_t needed = m.sum + m.x + m.h + k.scratch_bytes * std::size_t(workers) + 64;
  if (!workspace.data || workspace.bytes < needed)
    return Status::invalid("workspace: given " + std::to_string(workspace.data ? workspace.bytes : 0) +
                           " bytes, needed " + std::to_string(needed) + " for this plan and these arguments");
  char* base = reinterpret_cast<char*>((reinterpret_cast<std::uintptr_t>(workspace.data) + 63) / 64 * 64);
  k.sum = needs_sum ? reinterpret_cast<float*>(base) : static_cast<float*>(k.out);
  k.sum_stride = needs_sum ? (problem.hidden + 15) / 16 * 16 : k.out_stride;
  k.x = base + m.sum;
  k.h = base + m.sum + m.x;
  k.scratch = base + m.sum + m.x + m.h;
  k.pair_token = pairs.token;
  k.pair_weight = pairs.weight;

  std::int64_t next_item = 0;
  k.next_item = &next_item;
  const auto phase = [&](void (*body)(const KernelArgs&, int), int threads) {
    next_item = 0;
    run_workers(executor, threads, [&](int worker) { body(k, worker); });
  };
  for (std::size_t w = 0; w < waves.size(); ++w) {
    const Wave& wave = waves[w];
    k.runs = wave.runs.data();
    k.runs_count = static_cast<std::int64_t>(wave.runs.size());
    k.groups = wave.groups.data();
    k.groups_count = static_cast<std::int64_t>(wave.groups.size());
    k.first_wave = w == 0;
    k.last_wave = w + 1 == waves.size();
    std::int64_t words = 0;
    for (const Run& run : wave.runs) words += unit.x_words(k, run);
    phase(unit.pack, words <= kSerialWords ? 1 : workers);
    phase(unit.gate_up, workers);
    phase(unit.down, workers);
  }
  return Status::ok();
}

}  // namespace tileformer::moe
