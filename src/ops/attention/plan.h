// From the checked problem and the CPU to block sizes, work items and workspace.
#pragma once

#include <cstdint>
#include <vector>

#include "base/topology.h"
#include "ops/attention/decode/items.h"
#include "ops/attention/problem.h"
#include "ops/attention/units.h"

namespace tileformer::attention {

// Fills everything but what is data-independent of the ISA choice. unit null: the reference.
AttentionPlan plan(const AttentionArgs& args, const Problem& problem, const DecodeWork& decode,
                   const Unit* unit, Isa isa, const CpuTopology& cpu, int threads);

// What a call needs beside its tensors, in bytes. Sets decode_rows and decode_heads of the kernel's
// arguments.
struct WorkerMemory {
  std::size_t each;      // of every worker
  std::size_t partials;  // of decode, at the start of what is shared; then its counters
  std::size_t shared;
};
WorkerMemory worker_memory(const Unit& unit, bool tiles, const DecodeWork& decode, KernelArgs* kernel);

// The work list of a plan, by falling cost; equal costs in order of sequence and position.
std::vector<Task> work_list(const AttentionArgs& args, const Problem& problem, int lanes,
                            std::int64_t groups_per_task);

// Lane groups of a sequence and kv head; lane_group.h lays them out.
std::int64_t groups_of(std::int64_t queries, std::int64_t group, int lanes);

}  // namespace tileformer::attention
