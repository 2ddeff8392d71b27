#include "ops/moe/experts/backward/plan.h"

#include <algorithm>
#include <sstream>

namespace tileformer::moe {
namespace {

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }
std::int64_t round_up(std::int64_t a, std::int64_t b) { return ceil_div(a, b) * b; }
std::size_t pages(std::int64_t bytes) { return static_cast<std::size_t>(round_up(bytes, 4096)); }

// Rows of weights whose panel is on the chip at a time, as in the forward.
constexpr std::int64_t kRows = 96;
// A longer run is cut: its sums would leave L2.
constexpr std::int64_t kMaxRunGroups = 40;
// A wave has at least so many groups, so that a panel of weights serves enough of them,
constexpr std::int64_t kMinWaveGroups = 32;
// and at most so many bytes: they stay in a large L3. A share of it for each worker, so that many find enough
// to do in a wave.
constexpr std::int64_t kWaveBytes = std::int64_t{32} << 20, kWaveBytesPerWorker = std::int64_t{4} << 20;

Slices backward_slices(const FusedExpertsBackwardArgs& args, const Problem& problem, const Unit& unit,
                       int threads) {
  Slices s = plan_slices(problem, unit, threads);
  // The sums of gate and up are on the chip as well if they are computed again.
  if (!args.forward.gate_up_out) return s;
  const std::int64_t step = unit.row_step, tiles = ceil_div(problem.inter, step),
                     slices = ceil_div(tiles, kRows / step);
  s.inter = std::max<std::int64_t>(ceil_div(tiles, std::max<std::int64_t>(slices, 1)), 1) * step;
  return s;
}

std::int64_t words_of(const GroupWords& w) {
  return w.hidden_lanes + w.grad_lanes + w.hidden_steps + w.grad_steps + w.d + w.d_lanes + w.h;
}

// Groups of all pairs, at most.
std::int64_t all_groups(const Problem& problem, int lanes) {
  return ceil_div(problem.pairs(), lanes) + std::min(problem.experts, problem.pairs());
}

}  // namespace

bool expands_grad_out(const FusedExpertsBackwardArgs& args) {
  return args.grad_out.stride[1] == 0 && args.grad_out.shape[1] > 1;
}

BackwardKernelArgs backward_kernel_args(const FusedExpertsBackwardArgs& args, const Problem& problem,
                                        const Slices& slices, int row_step) {
  BackwardKernelArgs b{};
  b.forward = kernel_args(args.forward, problem, slices, row_step);
  b.grad_out = args.grad_out.data;
  b.grad_out_stride = args.grad_out.shape[0] == 1 ? 0 : args.grad_out.stride[0];
  // A tensor without elements may have no address.
  if (args.grad_hidden && problem.tokens > 0) {
    b.grad_hidden = args.grad_hidden.data;
    b.grad_hidden_stride = args.grad_hidden.stride[0];
  }
  b.grad_gate_up = operand_of(args.grad_gate_up);
  b.grad_down = operand_of(args.grad_down);
  b.grad_gate_up_bias = operand_of(args.grad_gate_up_bias);
  b.grad_down_bias = operand_of(args.grad_down_bias);
  b.needs_d = b.grad_hidden || b.grad_gate_up.data || b.grad_gate_up_bias.data;
  b.needs_q = b.needs_d || args.grad_weights;
  b.experts = problem.experts;
  return b;
}

std::vector<BackwardWave> backward_work_list(const std::int64_t* offsets, const Problem& problem,
                                             const BackwardUnit& unit, std::int64_t wave_pairs) {
  const std::int64_t lanes = unit.unit.lanes, most = wave_pairs / lanes;
  std::vector<BackwardWave> waves(1);
  std::int64_t used = 0;
  const auto add = [&](Share share) {
    const std::int64_t groups = ceil_div(share.pairs, lanes);
    // Sums from wave to wave are those of one share at a time.
    if (used > 0 && (used + groups > most || !share.first || !share.last)) {
      waves.emplace_back();
      used = 0;
    }
    BackwardWave& wave = waves.back();
    const int index = static_cast<int>(wave.shares.size());
    share.first_group = used;
    used += groups;
    wave.shares.push_back(share);
    for (int g = 0; g < groups; ++g) wave.groups.push_back({index, g});
    const std::int64_t runs = ceil_div(groups, kMaxRunGroups);
    for (std::int64_t r = 0; r < runs; ++r) {
      const std::int64_t begin = groups * r / runs, end = groups * (r + 1) / runs;
      wave.runs.push_back({index, static_cast<int>(begin), static_cast<int>(end - begin)});
    }
  };
  for (std::int64_t e = 0; e < problem.experts; ++e) {
    const std::int64_t begin = offsets[e], end = offsets[e + 1];
    if (begin == end) continue;
    const std::int64_t groups = ceil_div(end - begin, lanes), shares = ceil_div(groups, most);
    // Sums over pairs are cut at the same places, whatever the shares.
    const std::int64_t step = round_up(ceil_div(groups, shares), unit.kernel.sum_groups) * lanes;
    for (std::int64_t first = begin; first < end; first += step) {
      const std::int64_t pairs = std::min(step, end - first);
      add({e, first, static_cast<int>(pairs), 0, first == begin, first + pairs == end});
    }
  }
  return waves;
}

std::int64_t wave_lanes(const Problem& problem, const BackwardUnit& unit, std::int64_t wave_pairs) {
  return std::min(wave_pairs, all_groups(problem, unit.unit.lanes) * unit.unit.lanes);
}

BackwardMemory backward_memory(const FusedExpertsBackwardArgs& args, const Problem& problem,
                               const BackwardUnit& unit, const BackwardKernelArgs& b,
                               std::int64_t wave_pairs) {
  const std::int64_t lanes = wave_lanes(problem, unit, wave_pairs);
  const GroupWords w = unit.kernel.group_words(b);
  const auto words = [&](std::int64_t of_group) {
    return pages(of_group * (lanes / unit.unit.lanes) * std::int64_t(unit.unit.word_bytes));
  };
  BackwardMemory m{};
  if (b.grad_hidden && b.forward.dtype != DType::f32)
    m.sum = pages(problem.tokens * round_up(problem.hidden, 16) * 4);
  if (expands_grad_out(args))
    m.expanded_grad = pages((b.grad_out_stride == 0 ? 1 : problem.tokens) * problem.hidden *
                            std::int64_t(size_of(b.forward.dtype)));
  if (args.grad_weights)
    m.weight_parts = pages((ceil_div(problem.inter, b.forward.inter_slice) + 1) * lanes * 4);
  if (all_groups(problem, unit.unit.lanes) * unit.unit.lanes > wave_pairs)
    m.expert_sums = pages(unit.kernel.expert_sum_floats(b) * 4);
  m.hidden_lanes = words(w.hidden_lanes);
  m.grad_lanes = words(w.grad_lanes);
  m.hidden_steps = words(w.hidden_steps);
  m.grad_steps = words(w.grad_steps);
  m.d = words(w.d);
  m.d_lanes = words(w.d_lanes);
  m.h = words(w.h);
  return m;
}

FusedExpertsBackwardPlan plan_backward(const FusedExpertsBackwardArgs& args, const Problem& problem,
                                       const BackwardUnit& unit, Isa isa, int threads) {
  FusedExpertsBackwardPlan p;
  p.isa = isa;
  p.unit = unit.unit.label;
  p.token_lanes = unit.unit.lanes;
  p.depth = unit.unit.depth;
  p.threads = useful_threads(problem, threads);
  const Slices slices = backward_slices(args, problem, unit.unit, p.threads);
  p.inter_slice = slices.inter;
  p.hidden_slice = slices.hidden;
  BackwardKernelArgs b = backward_kernel_args(args, problem, slices, unit.unit.row_step);
  const std::int64_t group_bytes =
      std::max<std::int64_t>(words_of(unit.kernel.group_words(b)) * std::int64_t(unit.unit.word_bytes), 1);
  const std::int64_t most = std::max(kWaveBytes, p.threads * kWaveBytesPerWorker) / group_bytes;
  p.wave_pairs = round_up(std::max(most, kMinWaveGroups), unit.kernel.sum_groups) * unit.unit.lanes;
  b.forward.max_groups = std::min(kMaxRunGroups, all_groups(problem, unit.unit.lanes));
  const BackwardMemory m = backward_memory(args, problem, unit, b, p.wave_pairs);
  p.workspace_bytes = m.sum + m.expanded_grad + m.weight_parts + m.expert_sums + m.hidden_lanes +
                      m.grad_lanes + m.hidden_steps + m.grad_steps + m.d + m.d_lanes + m.h +
                      unit.kernel.scratch_bytes(b) * std::size_t(p.threads) + 64;
  return p;
}

}  // namespace tileformer::moe

namespace tileformer {

std::string FusedExpertsBackwardPlan::to_string() const {
  std::ostringstream s;
  s << "isa " << name_of(isa) << ", unit " << unit << ", " << token_lanes << " tokens a tile, depth " << depth
    << ", slices of " << inter_slice << " inter and " << hidden_slice << " hidden rows, waves of "
    << wave_pairs << " pairs, " << threads << " threads, workspace " << workspace_bytes << " bytes";
  if (!note.empty()) s << "; " << note;
  return s.str();
}

}  // namespace tileformer
