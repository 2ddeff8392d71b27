#include "ops/moe/experts/backward/run.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "base/element.h"
#include "base/run_workers.h"

namespace tileformer::moe {
namespace {

// Zeros for an expert that no token has. The rows or the columns lie side by side.
void clear_expert(const ExpertOperand& grad, std::int64_t expert, std::int64_t rows, std::int64_t columns) {
  if (!grad.data) return;
  const auto size = static_cast<std::int64_t>(size_of(grad.dtype));
  char* base = static_cast<char*>(const_cast<void*>(grad.data)) + expert * grad.expert * size;
  const bool by_rows = grad.column == 1;
  const std::int64_t lines = by_rows ? rows : columns, length = by_rows ? columns : rows,
                     stride = by_rows ? grad.row : grad.column;
  for (std::int64_t i = 0; i < lines; ++i)
    std::memset(base + i * stride * size, 0, static_cast<std::size_t>(length * size));
}

void clear_unused_experts(const BackwardKernelArgs& b, int workers, Executor& executor) {
  const std::int64_t hidden = b.forward.hidden_dim, inter = b.forward.inter;
  run_workers(executor, workers, [&](int worker) {
    for (std::int64_t e = worker; e < b.experts; e += workers) {
      if (b.offsets[e] != b.offsets[e + 1]) continue;
      clear_expert(b.grad_gate_up, e, 2 * inter, hidden);
      clear_expert(b.grad_down, e, hidden, inter);
      clear_expert(b.grad_gate_up_bias, e, 1, 2 * inter);
    }
  });
}

// A row per token, or one for all, of the value that stands for the row.
void expand_grad_out(const FusedExpertsBackwardArgs& args, const Problem& problem, void* rows,
                     BackwardKernelArgs* b) {
  const DType dtype = b->forward.dtype;
  const std::int64_t count =
      b->grad_out_stride == 0 ? std::min<std::int64_t>(problem.tokens, 1) : problem.tokens;
  for (std::int64_t t = 0; t < count; ++t) {
    const double value = load_element(args.grad_out.data, dtype, t * b->grad_out_stride);
    for (std::int64_t d = 0; d < problem.hidden; ++d)
      store_element(rows, dtype, t * problem.hidden + d, value);
  }
  b->grad_out = rows;
  if (b->grad_out_stride != 0) b->grad_out_stride = problem.hidden;
}

void store_grad_weight(const TensorView& grad, std::int64_t token, std::int64_t slot, double value) {
  store_element(grad.data, grad.dtype, token * grad.stride[0] + slot * grad.stride[1], value);
}

// The parts of a wave's pairs, added in the order of the slices.
void store_grad_weights(const TensorView& grad, const PairLists& pairs, const BackwardKernelArgs& b,
                        int lanes) {
  const std::int64_t parts = (b.forward.inter + b.forward.inter_slice - 1) / b.forward.inter_slice + 1;
  for (std::int64_t s = 0; s < b.shares_count; ++s) {
    const Share& share = b.shares[s];
    for (int i = 0; i < share.pairs; ++i) {
      const float* part = b.weight_parts + share.first_group * lanes + i;
      float sum = 0;
      for (std::int64_t p = 0; p < parts; ++p) sum += part[p * b.wave_lanes];
      const std::int64_t pair = share.first_pair + i;
      store_grad_weight(grad, pairs.token[pair], pairs.slot[pair], sum);
    }
  }
}

// Hands out a workspace.
class Memory {
 public:
  explicit Memory(const Workspace& w)
      : begin_(reinterpret_cast<std::uintptr_t>(w.data)), at_((begin_ + 63) / 64 * 64), bytes_(w.bytes) {}

  // Null if there is nothing to take.
  void* take(std::size_t bytes) {
    if (bytes == 0) return nullptr;
    const std::uintptr_t p = at_;
    at_ += bytes;
    return reinterpret_cast<void*>(p);
  }
  float* take_floats(std::size_t bytes) { return static_cast<float*>(take(bytes)); }

  std::size_t used() const { return at_ - begin_; }
  bool fits() const { return begin_ != 0 && used() <= bytes_; }

 private:
  std::uintptr_t begin_, at_;
  std::size_t bytes_;
};

void start_wave(const std::vector<BackwardWave>& waves, std::size_t index, BackwardKernelArgs* b) {
  const BackwardWave& wave = waves[index];
  b->shares = wave.shares.data();
  b->shares_count = static_cast<std::int64_t>(wave.shares.size());
  b->runs = wave.runs.data();
  b->runs_count = static_cast<std::int64_t>(wave.runs.size());
  b->groups = wave.groups.data();
  b->groups_count = static_cast<std::int64_t>(wave.groups.size());
  b->first_wave = index == 0;
  b->last_wave = index + 1 == waves.size();
}

}  // namespace

Status run_backward(const FusedExpertsBackwardArgs& args, const Problem& problem, const BackwardUnit& unit,
                    const PairLists& pairs, const FusedExpertsBackwardPlan& plan, Workspace workspace,
                    Executor& executor) {
  BackwardKernelArgs b =
      backward_kernel_args(args, problem, {plan.inter_slice, plan.hidden_slice}, unit.unit.row_step);
  const std::vector<BackwardWave> waves = backward_work_list(pairs.offsets, problem, unit, plan.wave_pairs);
  for (const BackwardWave& wave : waves)
    for (const GroupRun& run : wave.runs)
      b.forward.max_groups = std::max<std::int64_t>(b.forward.max_groups, run.groups);
  const int workers = std::min(plan.threads, executor.threads());
  b.forward.workers = workers;

  const BackwardMemory m = backward_memory(args, problem, unit, b, plan.wave_pairs);
  Memory memory(workspace);
  b.sum = m.sum ? memory.take_floats(m.sum) : static_cast<float*>(b.grad_hidden);
  b.sum_stride = m.sum ? (problem.hidden + 15) / 16 * 16 : b.grad_hidden_stride;
  void* expanded = memory.take(m.expanded_grad);
  b.weight_parts = memory.take_floats(m.weight_parts);
  b.wave_lanes = wave_lanes(problem, unit, plan.wave_pairs);
  b.expert_sums = memory.take_floats(m.expert_sums);
  b.hidden_lanes = memory.take(m.hidden_lanes);
  b.grad_lanes = memory.take(m.grad_lanes);
  b.hidden_steps = memory.take(m.hidden_steps);
  b.grad_steps = memory.take(m.grad_steps);
  b.d = memory.take(m.d);
  b.d_lanes = memory.take(m.d_lanes);
  b.h = memory.take(m.h);
  b.forward.scratch_bytes = unit.kernel.scratch_bytes(b);
  b.forward.scratch = static_cast<char*>(memory.take(b.forward.scratch_bytes * std::size_t(workers)));
  if (!memory.fits())
    return Status::invalid("workspace: given " + std::to_string(workspace.data ? workspace.bytes : 0) +
                           " bytes, needed " + std::to_string(memory.used()) +
                           " for this plan and these arguments");
  b.forward.pair_token = pairs.token;
  b.forward.pair_weight = pairs.weight;
  b.offsets = pairs.offsets;
  std::int64_t next_item = 0;
  b.forward.next_item = &next_item;
  const auto phase = [&](void (*body)(const BackwardKernelArgs&, int)) {
    next_item = 0;
    run_workers(executor, workers, [&](int worker) { body(b, worker); });
  };

  if (expanded) expand_grad_out(args, problem, expanded, &b);
  clear_unused_experts(b, workers, executor);
  for (std::int64_t t = 0; args.grad_weights && t < problem.tokens; ++t)
    for (std::int64_t j = 0; j < problem.k; ++j) store_grad_weight(args.grad_weights, t, j, 0);
  if (b.grad_down_bias.data) phase(unit.kernel.down_bias);
  if (!b.needs_q && !b.grad_down.data) return Status::ok();
  const bool weights = b.grad_gate_up.data || b.grad_gate_up_bias.data || b.grad_down.data;
  for (std::size_t w = 0; w < waves.size(); ++w) {
    start_wave(waves, w, &b);
    phase(unit.kernel.pack);
    phase(unit.kernel.inter);
    if (b.grad_hidden) phase(unit.kernel.hidden);
    if (weights) phase(unit.kernel.weights);
    if (args.grad_weights) store_grad_weights(args.grad_weights, pairs, b, unit.unit.lanes);
  }
  return Status::ok();
}

}  // namespace tileformer::moe
