// From a problem and a unit to slices, waves and bytes.
#pragma once

#include <cstdint>
#include <vector>

#include "ops/moe/experts/kernel_args.h"
#include "ops/moe/experts/problem.h"

namespace tileformer::moe {

// What the plan of a call is made of, of the forward and of the backward.
struct Slices {
  std::int64_t inter, hidden;  // rows of a work item
};

// Rows of a work item: as many as keep sums and weights on the chip, and an equal share for every thread.
Slices plan_slices(const Problem& problem, const Unit& unit, int threads);

// Of the forward, whose experts stream their weights if they have few pairs.
Slices plan_forward_slices(const Problem& problem, const Unit& unit, int threads);

// Workers that have something to do.
int useful_threads(const Problem& problem, int threads);

FusedExpertsPlan plan(const FusedExpertsArgs& args, const Problem& problem, const Unit& unit, Isa isa,
                      int threads);

// Runs that are packed at the same time.
struct Wave {
  std::vector<Run> runs;
  std::vector<Group> groups;
};

// offsets [experts + 1]: the first pair of each expert. k: for the sizes of packed rows.
std::vector<Wave> work_list(const std::int64_t* offsets, const Problem& problem, const Unit& unit,
                            const KernelArgs& k, std::int64_t wave_pairs);

// The memory that all workers share.
struct SharedMemory {
  std::size_t sum, x, h;
};
SharedMemory shared_memory(const Problem& problem, const Unit& unit, const KernelArgs& k,
                           std::int64_t wave_pairs, bool needs_sum);

// What the kernel is told of the problem; row_step is the unit's. Pointers of the workspace and of the
// dispatch are left out.
KernelArgs kernel_args(const FusedExpertsArgs& args, const Problem& problem, const Slices& slices,
                       int row_step);

}  // namespace tileformer::moe
