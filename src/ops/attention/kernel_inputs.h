// From the public arguments to what kernels read: the unit to run on, operands, sequences, options.
#pragma once

#include <vector>

#include "ops/attention/kernel_args.h"
#include "ops/attention/problem.h"
#include "ops/attention/units.h"

namespace tileformer::attention {

struct Choice {
  const Unit* unit;  // null: the reference
  Isa isa;
  const char* note;  // why a slower unit was taken; empty if none
};

// The unit for a checked problem on the active ISA (or the one that a test forces).
Status choose(const Problem& problem, Choice* choice);

// The kernel's view of args, without work list, sequences and addresses of scratch.
KernelArgs kernel_args(const AttentionArgs& args, const Problem& problem, int key_block, int max_groups);

std::vector<KernelSequence> kernel_sequences(const AttentionArgs& args, const Problem& problem);

// One logit per head in fp32; empty without sinks.
std::vector<float> sinks_of(const AttentionArgs& args, const Problem& problem);

}  // namespace tileformer::attention
