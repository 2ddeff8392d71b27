// From the checked problem and the CPU to chunks, slots and workspace of the backward.
#pragma once

#include <vector>

#include "ops/attention/backward/kernel_args.h"
#include "ops/attention/problem.h"
#include "ops/attention/units.h"
#include "tileformer/attention_backward.h"

namespace tileformer::attention {

// Checks args completely; on success problem holds what follows from them.
Status check(const AttentionBackwardArgs& args, Problem* problem);

// Everything that a call needs beside the tensors.
struct BackwardLayout {
  AttentionBackwardPlan plan;
  BackwardKernelArgs kernel{};      // complete but for addresses of workspace, sequences and sinks
  std::vector<BackwardTask> tasks;  // the work list
  std::size_t row_term_floats = 0;  // of kernel.row_term, if it is wanted
};

// unit null: the reference.
BackwardLayout backward_layout(const AttentionBackwardArgs& args, const Problem& problem, const Unit* unit,
                               Isa isa, int threads);

}  // namespace tileformer::attention
