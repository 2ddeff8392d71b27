// From the checked problem and the CPU to block sizes, work items and workspace.
#pragma once

#include <cstdint>
#include <vector>

#include "base/topology.h"
#include "ops/attention/problem.h"
#include "ops/attention/units.h"

namespace tileformer::attention {

// Fills everything but what is data-independent of the ISA choice. unit null: the reference.
AttentionPlan plan(const AttentionArgs& args, const Problem& problem, const Unit* unit, Isa isa,
                   const CpuTopology& cpu, int threads);

// The work list of a plan, by falling cost; equal costs in order of sequence and position.
std::vector<Task> work_list(const AttentionArgs& args, const Problem& problem, int lanes,
                            std::int64_t groups_per_task);

// Lane groups of a sequence and kv head; lane_group.h lays them out.
std::int64_t groups_of(std::int64_t queries, std::int64_t group, int lanes);

}  // namespace tileformer::attention
