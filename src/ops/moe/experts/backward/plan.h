// From a problem and a unit to slices, waves and bytes of the backward.
#pragma once

#include <cstdint>
#include <vector>

#include "ops/moe/experts/backward/kernel_args.h"
#include "ops/moe/experts/plan.h"
#include "tileformer/fused_experts_backward.h"

namespace tileformer::moe {

// A unit with its kernels.
struct BackwardUnit {
  const Unit& unit;
  const BackwardKernel& kernel;
};

FusedExpertsBackwardPlan plan_backward(const FusedExpertsBackwardArgs& args, const Problem& problem,
                                       const BackwardUnit& unit, Isa isa, int threads);

// Pairs that are packed at the same time.
struct BackwardWave {
  std::vector<Share> shares;
  std::vector<GroupRun> runs;
  std::vector<Group> groups;
};

// offsets [experts + 1]: the first pair of each expert. At least one wave, which may be empty.
std::vector<BackwardWave> backward_work_list(const std::int64_t* offsets, const Problem& problem,
                                             const BackwardUnit& unit, std::int64_t wave_pairs);

// Lanes of the groups that a wave may have.
std::int64_t wave_lanes(const Problem& problem, const BackwardUnit& unit, std::int64_t wave_pairs);

// Bytes of the memory that all workers share.
struct BackwardMemory {
  std::size_t sum, expanded_grad, weight_parts, expert_sums;
  std::size_t hidden_lanes, grad_lanes, hidden_steps, grad_steps, d, d_lanes, h;
};
BackwardMemory backward_memory(const FusedExpertsBackwardArgs& args, const Problem& problem,
                               const BackwardUnit& unit, const BackwardKernelArgs& b,
                               std::int64_t wave_pairs);

// What the kernel is told of the problem; pointers of the workspace and of the dispatch are left out.
BackwardKernelArgs backward_kernel_args(const FusedExpertsBackwardArgs& args, const Problem& problem,
                                        const Slices& slices, int row_step);

// Whether grad_out is one value, or one row, for a whole row, so that it is written out for the kernel.
bool expands_grad_out(const FusedExpertsBackwardArgs& args);

}  // namespace tileformer::moe
