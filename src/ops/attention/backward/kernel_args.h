// What a backward kernel is handed: plain data, complete, decided.
#pragma once

#include "ops/attention/kernel_args.h"

namespace tileformer::attention {

// In fp32 a lse of this size is off by 3e-5, and one of 1e9, as masks with large negative numbers make it
// where they hide whole rows, has lost the logarithm of the sum. Rows below get P from their own scores.
inline constexpr float kFarLse = -1000;

// A chunk of lane groups of one sequence and kv head. The chunks of a head follow each other in the list, and
// add to its dK and dV in that order.
struct BackwardTask {
  std::int64_t sequence, kv_head;
  std::int64_t first_group, groups;
  std::int64_t block_begin, block_end;  // key blocks that its queries see
  std::int64_t head_begin, head_end;    // the head's tasks in the list
  std::int64_t slot;                    // fp32 memory of the head's dK and dV; -1: one task, none needed
  std::int64_t slot_free_after;         // tasks before this one may still use the slot
};

struct BackwardKernelArgs {
  KernelArgs forward;  // without out: see below; scratch and next_item are those of the backward
  Operand out, grad_out;
  Operand grad_lse;                          // data null: none
  Operand grad_query, grad_key, grad_value;  // data null: not wanted
  Operand grad_mask;                         // f32; data null: not wanted
  Operand row_term;  // f32 [batch, heads, seq_q]: D, kept for grad_sinks; data null: not wanted
  // Tasks add to the same elements of grad_mask: they do so in the order of the list. `whole` ones wait until
  // their predecessors are done, others only until those have left the key block.
  bool mask_in_order, mask_whole;

  const BackwardTask* tasks;
  std::int64_t tasks_count;
  // For each task the key block before which it is done with everything; INT64_MAX at its end. Zero at the
  // start.
  std::int64_t* progress;

  int block_groups;  // lane groups of a query block
  float* slots;      // fp32 dK and dV: [slot][padded keys][columns of dK, then of dV]
  std::int64_t slot_floats;
};

}  // namespace tileformer::attention
