// What the kernels of the backward are handed: plain data, checked.
#pragma once

#include "ops/moe/experts/kernel_args.h"

namespace tileformer::moe {

// The pairs of one expert that are worked on in the same wave, in groups of kLanes.
struct Share {
  std::int64_t expert;
  std::int64_t first_pair;  // in the order of the dispatch
  int pairs;
  std::int64_t first_group;  // in the wave
  bool first, last;          // of its expert's shares
};

// Neighbouring groups of a share that use the same panel of weights.
struct GroupRun {
  int share;
  int first, groups;
};

// Words of a group in the buffers of a wave; 0 where a buffer is not needed.
struct GroupWords {
  std::int64_t hidden_lanes, grad_lanes;  // packed for products of weights and pairs
  std::int64_t hidden_steps, grad_steps;  // packed for sums over pairs
  std::int64_t d, d_lanes;                // gradients of gate and up: rows, and packed as hidden_lanes
  std::int64_t h;                         // weight * h, rows
};

struct BackwardKernelArgs {
  // What the forward is told; its gate_up_out is read (null: gate and up are computed again), its waves,
  // buffers and outputs are not used. max_groups: of a GroupRun, over all waves.
  KernelArgs forward;

  const void* grad_out;  // [tokens, hidden], rows so far apart
  std::int64_t grad_out_stride;

  // Gradients; data null: not wanted. Weights' in the storage order of the weights.
  void* grad_hidden;
  std::int64_t grad_hidden_stride;
  ExpertOperand grad_gate_up, grad_down;
  ExpertOperand grad_gate_up_bias, grad_down_bias;
  // [slices of inter + 1][wave_lanes]: <q, h> of each slice, then <dy, down_bias>; null: not wanted.
  float* weight_parts;
  std::int64_t wave_lanes;
  bool needs_q;  // q = down^T dy
  bool needs_d;  // gradients of gate and up

  float* sum;  // of grad_hidden, which it is itself if that is fp32
  std::int64_t sum_stride;

  const std::int64_t* offsets;  // [experts + 1]: the first pair of each expert
  std::int64_t experts;

  // One wave.
  const Share* shares;
  std::int64_t shares_count;
  const GroupRun* runs;
  std::int64_t runs_count;
  const Group* groups;  // `run` counts shares
  std::int64_t groups_count;
  bool first_wave, last_wave;
  void *hidden_lanes, *grad_lanes, *hidden_steps, *grad_steps, *d, *d_lanes, *h;
  float* expert_sums;  // the gradients of an expert's weights from wave to wave
};

// The phases of a wave, in their order; each takes items until none is left.
struct BackwardKernel {
  int sum_groups;  // shares of an expert but the last are multiples of so many groups
  GroupWords (*group_words)(const BackwardKernelArgs&);
  std::size_t (*scratch_bytes)(const BackwardKernelArgs&);
  std::int64_t (*expert_sum_floats)(const BackwardKernelArgs&);
  void (*pack)(const BackwardKernelArgs&, int worker);       // hidden and grad_out
  void (*inter)(const BackwardKernelArgs&, int worker);      // d, h, <q, h>
  void (*hidden)(const BackwardKernelArgs&, int worker);     // grad_hidden
  void (*weights)(const BackwardKernelArgs&, int worker);    // of gate_up and down, and gate_up_bias
  void (*down_bias)(const BackwardKernelArgs&, int worker);  // once a call
};

}  // namespace tileformer::moe
