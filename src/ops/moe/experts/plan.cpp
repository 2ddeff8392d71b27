#include "ops/moe/experts/plan.h"

#include <algorithm>
#include <sstream>

namespace tileformer::moe {
namespace {

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }
std::int64_t round_up(std::int64_t a, std::int64_t b) { return ceil_div(a, b) * b; }

// A worker pays some 5 us to be woken; below so many multiplications it is not worth it.
constexpr double kWorkPerThread = 1e6;
// Rows of weights whose panel is on the chip at a time: on AVX2 their panel and the sums of a run of
// kMaxGroups groups are 300 KiB.
constexpr std::int64_t kRows = 96;
// Rows that stream are in fewer and larger slices: of weights that are stored across, lines of at least half
// a page; and sums of all pairs still fit in L2.
constexpr std::int64_t kStreamedInter = 1024, kStreamedHidden = 1024;
// A run of more groups is cut: its sums would leave L2.
constexpr std::int64_t kMaxGroups = 32;
// Packed rows and h of a wave: they stay in a large L3.
constexpr std::int64_t kWaveBytes = std::int64_t{32} << 20;

Run run_of(std::int64_t expert, std::int64_t first_pair, int pairs, bool rows) {
  Run r{};
  r.expert = expert;
  r.first_pair = first_pair;
  r.pairs = pairs;
  r.rows = rows;
  return r;
}

std::int64_t panel_rows(std::int64_t most, std::int64_t step) {
  return std::max<std::int64_t>(most / step, 1) * step;
}

// `rows` in at least `slices` slices of equal numbers of steps.
std::int64_t equal_slices(std::int64_t rows, std::int64_t slices, std::int64_t step) {
  const std::int64_t steps = std::max<std::int64_t>(ceil_div(rows, step), 1);
  return ceil_div(steps, std::clamp<std::int64_t>(slices, 1, steps)) * step;
}

// Most experts have few pairs.
bool streams_mostly(const Problem& p, const Unit& unit) { return p.pairs() <= p.experts * unit.row_pairs; }

}  // namespace

Slices plan_slices(const Problem& problem, const Unit& unit, int threads) {
  const std::int64_t step = unit.row_step;
  const auto slice_of = [&](std::int64_t rows, std::int64_t most, std::int64_t multiple) {
    const std::int64_t slices = ceil_div(ceil_div(rows, step), panel_rows(most, step) / step);
    return equal_slices(rows, round_up(slices, multiple), step);
  };
  Slices s{};
  s.inter = slice_of(problem.inter, kRows / 2, 1);
  // A slice of hidden takes all experts, so that threads finish together only with equal shares.
  s.hidden = slice_of(problem.hidden, kRows, threads > 1 ? 2 * threads : 1);
  return s;
}

Slices plan_forward_slices(const Problem& problem, const Unit& unit, int threads) {
  if (!streams_mostly(problem, unit)) return plan_slices(problem, unit, threads);
  const std::int64_t runs = std::max<std::int64_t>(std::min(problem.experts, problem.pairs()), 1);
  const std::int64_t items = threads > 1 ? 4 * threads : 1, shares = threads > 1 ? 2 * threads : 1;
  const std::int64_t inter_step = panel_rows(kRows / 2, unit.row_step),
                     hidden_step = panel_rows(kRows, unit.row_step);
  Slices s{};
  s.inter = equal_slices(
      problem.inter, std::max(ceil_div(problem.inter, kStreamedInter), ceil_div(items, runs)), inter_step);
  s.hidden =
      equal_slices(problem.hidden, std::max(ceil_div(problem.hidden, kStreamedHidden), shares), hidden_step);
  return s;
}

int useful_threads(const Problem& problem, int threads) {
  const double work = 3.0 * double(problem.pairs()) * double(problem.hidden) * double(problem.inter);
  return std::max(1, std::min(threads, static_cast<int>(std::min(work / kWorkPerThread + 1, 1e6))));
}

KernelArgs kernel_args(const FusedExpertsArgs& args, const Problem& problem, const Slices& slices,
                       int row_step) {
  KernelArgs k{};
  k.hidden = args.hidden.data;
  k.hidden_stride = args.hidden.stride[0];
  k.dtype = args.hidden.dtype;
  k.gate_up = weights_of(args.gate_up);
  k.down = weights_of(args.down);
  k.tokens = problem.tokens;
  k.hidden_dim = problem.hidden;
  k.inter = problem.inter;
  k.activation = args.activation;
  k.interleaved = args.interleaved;
  k.alpha = static_cast<float>(args.alpha);
  k.limit = static_cast<float>(args.limit);
  if (args.gate_up_out) {
    k.gate_up_out = args.gate_up_out.data;
    k.gate_up_out_stride = args.gate_up_out.stride[0];
  }
  k.out = args.out.data;
  k.out_stride = args.out.stride[0];
  k.inter_slice = slices.inter;
  k.hidden_slice = slices.hidden;
  k.inter_panel = panel_rows(kRows / 2, row_step);
  k.hidden_panel = panel_rows(kRows, row_step);
  return k;
}

std::vector<Wave> work_list(const std::int64_t* offsets, const Problem& problem, const Unit& unit,
                            const KernelArgs& k, std::int64_t wave_pairs) {
  std::vector<Wave> waves(1);
  std::int64_t pairs = 0, x = 0, h = 0;
  const auto add = [&](Run run) {
    const std::int64_t padded = run.rows ? run.pairs : round_up(run.pairs, unit.lanes);
    if (pairs > 0 && pairs + padded > wave_pairs) {
      waves.emplace_back();
      pairs = x = h = 0;
    }
    run.x = x;
    run.h = h;
    pairs += padded;
    x += unit.x_words(k, run);
    h += unit.h_words(k, run);
    Wave& wave = waves.back();
    const int groups = run.rows ? 1 : static_cast<int>(ceil_div(run.pairs, unit.lanes));
    for (int g = 0; g < groups; ++g) wave.groups.push_back({static_cast<int>(wave.runs.size()), g});
    wave.runs.push_back(run);
  };
  for (std::int64_t e = 0; e < problem.experts; ++e) {
    const std::int64_t n = offsets[e + 1] - offsets[e];
    if (n == 0) continue;
    if (n <= unit.row_pairs) {
      add(run_of(e, offsets[e], static_cast<int>(n), true));
      continue;
    }
    const std::int64_t groups = ceil_div(n, unit.lanes), runs = ceil_div(groups, kMaxGroups);
    for (std::int64_t r = 0; r < runs; ++r) {
      const std::int64_t begin = groups * r / runs * unit.lanes,
                         end = std::min(n, groups * (r + 1) / runs * unit.lanes);
      add(run_of(e, offsets[e] + begin, static_cast<int>(end - begin), false));
    }
  }
  return waves;
}

SharedMemory shared_memory(const Problem& problem, const Unit& unit, const KernelArgs& k,
                           std::int64_t wave_pairs, bool needs_sum) {
  const std::int64_t lanes = unit.lanes, runs = std::min(problem.experts, problem.pairs());
  const std::int64_t padded =
      std::min(std::max(wave_pairs, kMaxGroups * lanes), problem.pairs() + runs * (lanes - 1));
  const Run group = run_of(0, 0, unit.lanes, false), row = run_of(0, 0, 1, true);
  // Whatever a wave is made of: groups, or rows, which end in a vector that is not full.
  const auto bytes = [&](std::int64_t group_words, std::int64_t row_words) {
    const std::int64_t words =
        padded * std::max(ceil_div(group_words, lanes), row_words) + group_words + (runs + 1) * 16;
    return static_cast<std::size_t>(round_up(words * std::int64_t(unit.word_bytes), 4096));
  };
  SharedMemory m{};
  if (needs_sum)
    m.sum = static_cast<std::size_t>(round_up(problem.tokens * round_up(problem.hidden, 16) * 4, 4096));
  m.x = bytes(unit.x_words(k, group), unit.x_words(k, row));
  m.h = bytes(unit.h_words(k, group), unit.h_words(k, row));
  return m;
}

FusedExpertsPlan plan(const FusedExpertsArgs& args, const Problem& problem, const Unit& unit, Isa isa,
                      int threads) {
  FusedExpertsPlan p;
  p.isa = isa;
  p.unit = unit.label;
  p.token_lanes = unit.lanes;
  p.row_tokens = unit.row_pairs;
  p.depth = unit.depth;
  p.threads = useful_threads(problem, threads);
  const Slices slices = plan_forward_slices(problem, unit, p.threads);
  p.inter_slice = slices.inter;
  p.hidden_slice = slices.hidden;
  KernelArgs k = kernel_args(args, problem, slices, unit.row_step);
  const Run group = run_of(0, 0, unit.lanes, false);
  const std::int64_t group_bytes = std::max<std::int64_t>(
      (unit.x_words(k, group) + unit.h_words(k, group)) * std::int64_t(unit.word_bytes), 1);
  p.wave_pairs = std::max(kMaxGroups, kWaveBytes / group_bytes) * unit.lanes;
  k.max_groups = std::min(kMaxGroups, ceil_div(std::max<std::int64_t>(problem.pairs(), 1), unit.lanes));
  const SharedMemory m = shared_memory(problem, unit, k, p.wave_pairs, k.dtype != DType::f32);
  p.workspace_bytes = m.sum + m.x + m.h + unit.scratch_bytes(k) * std::size_t(p.threads) + 64;
  return p;
}

}  // namespace tileformer::moe

namespace tileformer {

std::string FusedExpertsPlan::to_string() const {
  std::ostringstream s;
  s << "isa " << name_of(isa) << ", unit " << unit << ", " << token_lanes << " tokens a tile, rows up to "
    << row_tokens << " tokens, depth " << depth << ", slices of " << inter_slice << " inter and "
    << hidden_slice << " hidden rows, waves of " << wave_pairs << " pairs, " << threads
    << " threads, workspace " << workspace_bytes << " bytes";
  if (!note.empty()) s << "; " << note;
  return s.str();
}

}  // namespace tileformer
