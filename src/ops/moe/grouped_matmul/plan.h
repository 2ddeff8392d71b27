// From a problem and a unit to slices, waves and bytes, of the product and of the gradient of the weights.
#pragma once

#include <cstdint>
#include <vector>

#include "ops/moe/grouped_matmul/check.h"
#include "ops/moe/grouped_matmul/kernel_args.h"

namespace tileformer::moe::grouped {

// A problem that a kernel computes. The rest, float64 and sizes of zero, is the reference's.
bool has_kernel(const Problem& problem, DType dtype);

// The product whose result is grad_rows.
GroupedMatmulArgs product_of_grad_rows(const GroupedMatmulBackwardArgs& args);

GroupedMatmulPlan plan_product(const GroupedMatmulArgs& args, const Unit& unit, Isa isa, int threads);

// plan.grad_rows is left out.
GroupedMatmulBackwardPlan plan_weight_gradient(const GroupedMatmulBackwardArgs& args, const Unit& unit,
                                               Isa isa, int threads);

// What a kernel is told of the problem; waves and workers are left out.
ProductArgs product_args(const GroupedMatmulArgs& args, std::int64_t out_slice);
WeightGradientArgs weight_gradient_args(const GroupedMatmulBackwardArgs& args, std::int64_t line_slice);

// Words that hold any wave of the call, whatever the counts.
std::int64_t wave_words(const ProductArgs& k, const Problem& problem, const Unit& unit);
std::int64_t wave_words(const WeightGradientArgs& k, const Problem& problem, const Unit& unit);

// Runs that are packed at the same time, in the order of their experts.
struct ProductWave {
  std::vector<Run> runs;
  std::vector<Group> groups;
  std::int64_t words = 0;
};
std::vector<ProductWave> product_waves(const ProductArgs& k, const std::vector<std::int64_t>& offsets,
                                       const Unit& unit, std::int64_t words);

struct GradientWave {
  std::vector<Block> blocks;
  std::vector<BlockRows> rows;
  std::int64_t words = 0;
};
std::vector<GradientWave> gradient_waves(const WeightGradientArgs& k,
                                         const std::vector<std::int64_t>& offsets, const Unit& unit,
                                         std::int64_t words);

}  // namespace tileformer::moe::grouped
