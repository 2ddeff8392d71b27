#include "ops/moe/grouped_matmul/plan.h"

#include <algorithm>
#include <sstream>

namespace tileformer::moe::grouped {
namespace {

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

// A worker pays some 5 us to be woken; below so many multiplications it is not worth it.
constexpr double kWorkPerThread = 1e6;
// Rows of a panel: on AVX2 it and the sums of kMaxGroups groups are 300 KiB.
constexpr std::int64_t kRows = 96;
// More groups at a time: their sums would leave L2.
constexpr int kMaxGroups = 32;
// What is packed at a time stays in a large L3.
constexpr std::int64_t kWaveBytes = std::int64_t{32} << 20;

int useful_threads(const Problem& p, int threads) {
  const double work = double(p.rows) * double(p.out) * double(p.in);
  return std::max(1, std::min(threads, static_cast<int>(std::min(work / kWorkPerThread + 1, 1e6))));
}

// Rows of a work item: kRows or nearly so; fewer, if else there were not two items for every thread.
std::int64_t slice_of(std::int64_t rows, std::int64_t items_of_slice, const Unit& unit, int threads) {
  const std::int64_t tiles = ceil_div(rows, unit.row_step);
  std::int64_t slices = ceil_div(tiles, std::max<std::int64_t>(kRows / unit.row_step, 1));
  if (threads > 1) slices = std::max(slices, ceil_div(2 * threads, items_of_slice));
  return ceil_div(tiles, std::min(slices, tiles)) * unit.row_step;
}

std::int64_t experts_with_rows(const Problem& p) {
  return std::max<std::int64_t>(std::min(p.experts, p.rows), 1);
}

std::int64_t most_words(const Unit& unit) { return kWaveBytes / static_cast<std::int64_t>(unit.word_bytes); }

// Groups of columns of a block of so many rows.
int block_groups(const WeightGradientArgs& k, std::int64_t rows, const Unit& unit) {
  const std::int64_t fit = most_words(unit) / std::max<std::int64_t>(unit.column_words(rows), 1);
  const std::int64_t all = ceil_div(k.columns_count, unit.lanes);
  return static_cast<int>(std::clamp<std::int64_t>(fit, 1, std::min<std::int64_t>(all, kMaxGroups)));
}

bool streams(const ProductArgs& k, const Unit& unit, std::int64_t rows) {
  return k.weights.weight.column == 1 && rows <= unit.streamed_rows;
}

// grad_weight's neighbours in memory are elements of `in`.
bool columns_are_in(const TensorView& grad) {
  if (grad.stride[2] == 1 && grad.shape[2] > 1) return true;
  return grad.stride[1] != 1 && grad.shape[1] > 1;
}

Rows rows_of(const TensorView& view) { return {view.data, view.stride[0]}; }

}  // namespace

bool has_kernel(const Problem& problem, DType dtype) {
  return dtype != DType::f64 && problem.experts > 0 && problem.out > 0 && problem.in > 0;
}

GroupedMatmulArgs product_of_grad_rows(const GroupedMatmulBackwardArgs& args) {
  GroupedMatmulArgs product;
  product.rows = args.grad_out;
  product.weights.weight = args.forward.weights.weight.transposed(1, 2);
  product.counts = args.forward.counts;
  product.out = args.grad_rows;
  return product;
}

ProductArgs product_args(const GroupedMatmulArgs& args, std::int64_t out_slice) {
  ProductArgs k{};
  k.rows = rows_of(args.rows);
  k.out = rows_of(args.out);
  k.dtype = args.rows.dtype;
  k.weights = weights_of(args.weights);
  k.in_dim = args.weights.weight.shape[2];
  k.out_dim = args.weights.weight.shape[1];
  k.out_slice = out_slice;
  k.max_groups = 1;
  return k;
}

WeightGradientArgs weight_gradient_args(const GroupedMatmulBackwardArgs& args, std::int64_t line_slice) {
  WeightGradientArgs k{};
  const TensorView& grad = args.grad_weight;
  const bool columns_in = columns_are_in(grad);
  const int line = columns_in ? 1 : 2, column = columns_in ? 2 : 1;
  k.lines = rows_of(columns_in ? args.grad_out : args.forward.rows);
  k.columns = rows_of(columns_in ? args.forward.rows : args.grad_out);
  k.dtype = args.forward.rows.dtype;
  k.lines_count = grad.shape[line];
  k.columns_count = grad.shape[column];
  k.line_slice = line_slice;
  k.grad = grad.data;
  k.grad_dtype = grad.dtype;
  k.grad_expert = grad.stride[0];
  k.grad_line = grad.stride[line];
  k.max_groups = 1;
  return k;
}

std::int64_t wave_words(const ProductArgs& k, const Problem& p, const Unit& unit) {
  const std::int64_t group = unit.run_words(k, unit.lanes, false), row = unit.run_words(k, 1, true);
  const std::int64_t all = p.rows * std::max(ceil_div(group, unit.lanes), row) + experts_with_rows(p) * group;
  return std::min(all, std::max(most_words(unit), kMaxGroups * group));
}

std::int64_t wave_words(const WeightGradientArgs& k, const Problem& p, const Unit& unit) {
  const std::int64_t lanes = unit.lanes, row_groups = ceil_div(p.rows, lanes) + experts_with_rows(p);
  const std::int64_t all = ceil_div(k.columns_count, lanes) * unit.column_words(row_groups * lanes);
  return std::min(all, std::max(most_words(unit), unit.column_words(p.rows)));
}

std::vector<ProductWave> product_waves(const ProductArgs& k, const std::vector<std::int64_t>& offsets,
                                       const Unit& unit, std::int64_t words) {
  std::vector<ProductWave> waves(1);
  const auto add = [&](std::int64_t expert, std::int64_t first, std::int64_t end, bool streamed) {
    Run run{expert, first, static_cast<int>(end - first), streamed, 0};
    const std::int64_t needed = unit.run_words(k, run.rows, streamed);
    if (waves.back().words + needed > words) waves.emplace_back();
    ProductWave& wave = waves.back();
    run.x = wave.words;
    wave.words += needed;
    const int groups = streamed ? 1 : static_cast<int>(ceil_div(run.rows, unit.lanes));
    for (int g = 0; g < groups; ++g) wave.groups.push_back({static_cast<int>(wave.runs.size()), g});
    wave.runs.push_back(run);
  };
  for (std::size_t e = 0; e + 1 < offsets.size(); ++e) {
    const std::int64_t first = offsets[e], end = offsets[e + 1];
    if (first == end) continue;
    const std::int64_t expert = static_cast<std::int64_t>(e);
    if (streams(k, unit, end - first)) {
      add(expert, first, end, true);
      continue;
    }
    const std::int64_t groups = ceil_div(end - first, unit.lanes), runs = ceil_div(groups, kMaxGroups);
    for (std::int64_t r = 0; r < runs; ++r)
      add(expert, first + groups * r / runs * unit.lanes,
          std::min(end, first + groups * (r + 1) / runs * unit.lanes), false);
  }
  return waves;
}

std::vector<GradientWave> gradient_waves(const WeightGradientArgs& k,
                                         const std::vector<std::int64_t>& offsets, const Unit& unit,
                                         std::int64_t words) {
  std::vector<GradientWave> waves(1);
  const std::int64_t all_groups = ceil_div(k.columns_count, unit.lanes);
  for (std::size_t e = 0; e + 1 < offsets.size(); ++e) {
    const std::int64_t rows = offsets[e + 1] - offsets[e], most = block_groups(k, rows, unit);
    const std::int64_t blocks = ceil_div(all_groups, most);
    for (std::int64_t b = 0; b < blocks; ++b) {
      const std::int64_t first = all_groups * b / blocks, end = all_groups * (b + 1) / blocks;
      Block block{static_cast<std::int64_t>(e),  offsets[e], rows, first * unit.lanes,
                  static_cast<int>(end - first), 0};
      const std::int64_t needed = block.groups * unit.column_words(rows);
      if (waves.back().words + needed > words) waves.emplace_back();
      GradientWave& wave = waves.back();
      block.x = wave.words;
      wave.words += needed;
      for (std::int64_t r = 0; r < rows; r += unit.lanes)
        wave.rows.push_back({static_cast<int>(wave.blocks.size()), r});
      wave.blocks.push_back(block);
    }
  }
  return waves;
}

GroupedMatmulPlan plan_product(const GroupedMatmulArgs& args, const Unit& unit, Isa isa, int threads) {
  const TensorView& weight = args.weights.weight;
  const Problem problem{args.rows.shape[0], weight.shape[0], weight.shape[1], weight.shape[2]};
  GroupedMatmulPlan p;
  p.isa = isa;
  p.unit = unit.label;
  p.row_lanes = unit.lanes;
  p.depth = unit.depth;
  p.threads = useful_threads(problem, threads);
  p.out_slice = slice_of(problem.out, experts_with_rows(problem), unit, p.threads);
  ProductArgs k = product_args(args, p.out_slice);
  p.streamed_rows = streams(k, unit, 1) ? unit.streamed_rows : 0;
  k.max_groups =
      static_cast<int>(std::clamp<std::int64_t>(ceil_div(problem.rows, unit.lanes), 1, kMaxGroups));
  p.packed_bytes = static_cast<std::size_t>(wave_words(k, problem, unit)) * unit.word_bytes;
  p.workspace_bytes = p.packed_bytes + unit.product_scratch(k) * static_cast<std::size_t>(p.threads) + 128;
  if (!p.streamed_rows) p.note = "weights are stored across: experts with few rows are multiplied in tiles";
  return p;
}

GroupedMatmulBackwardPlan plan_weight_gradient(const GroupedMatmulBackwardArgs& args, const Unit& unit,
                                               Isa isa, int threads) {
  const TensorView& weight = args.forward.weights.weight;
  const Problem problem{args.grad_out.shape[0], weight.shape[0], weight.shape[1], weight.shape[2]};
  GroupedMatmulBackwardPlan p;
  p.isa = isa;
  p.unit = unit.label;
  p.threads = useful_threads(problem, threads);
  if (!args.grad_weight) return p;
  WeightGradientArgs k = weight_gradient_args(args, 0);
  k.max_groups = block_groups(k, 1, unit);
  p.weight_columns = k.max_groups * unit.lanes;
  k.line_slice = p.weight_slice =
      slice_of(k.lines_count, problem.experts * ceil_div(k.columns_count, p.weight_columns), unit, p.threads);
  p.packed_bytes = static_cast<std::size_t>(wave_words(k, problem, unit)) * unit.word_bytes;
  p.workspace_bytes =
      p.packed_bytes + unit.weight_gradient_scratch(k) * static_cast<std::size_t>(p.threads) + 128;
  return p;
}

}  // namespace tileformer::moe::grouped

namespace tileformer {

std::string GroupedMatmulPlan::to_string() const {
  std::ostringstream s;
  s << "isa " << name_of(isa) << ", unit " << unit << ", " << row_lanes
    << " rows a tile, weights streamed up to " << streamed_rows << " rows, depth " << depth << ", slices of "
    << out_slice << " rows of weights, " << packed_bytes << " bytes packed at a time, " << threads
    << " threads, workspace " << workspace_bytes << " bytes";
  if (!note.empty()) s << "; " << note;
  return s.str();
}

std::string GroupedMatmulBackwardPlan::to_string() const {
  std::ostringstream s;
  s << "isa " << name_of(isa) << ", unit " << unit << ", " << threads << " threads, workspace "
    << workspace_bytes << " bytes";
  if (grad_rows.threads) s << "\ngrad_rows: " << grad_rows.to_string();
  if (weight_slice)
    s << "\ngrad_weight: slices of " << weight_slice << " lines of " << weight_columns << " columns, "
      << packed_bytes << " bytes packed at a time";
  if (!note.empty()) s << "; " << note;
  return s.str();
}

}  // namespace tileformer
