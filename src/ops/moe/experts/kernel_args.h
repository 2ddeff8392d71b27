// What the kernels of experts are handed: plain data, checked.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ops/moe/common/weight_operand.h"
#include "tileformer/dtype.h"
#include "tileformer/fused_experts.h"

namespace tileformer::moe {

// The pairs (token, slot) of one expert that are worked on together.
struct Run {
  std::int64_t expert;
  std::int64_t first_pair;  // in the order of the dispatch
  int pairs;
  bool rows;          // few pairs: weights stream, the pairs' rows are broadcast against them
  std::int64_t x, h;  // where its packed hidden rows and its h stand, in words of the wave's buffers
};

// kLanes pairs of a run, or all of its pairs if it has rows.
struct Group {
  int run;
  int index;  // in the run
};

struct KernelArgs {
  const void* hidden;  // [tokens, hidden]
  std::int64_t hidden_stride;
  DType dtype;
  WeightOperand gate_up, down;
  std::int64_t tokens, hidden_dim, inter;
  ExpertActivation activation;
  bool interleaved;
  float alpha, limit;

  const std::int32_t* pair_token;  // [pairs], in the order of the dispatch
  const float* pair_weight;

  void* gate_up_out;  // [pairs, 2 * inter]; null: not wanted
  std::int64_t gate_up_out_stride;

  void* out;  // [tokens, hidden]
  std::int64_t out_stride;
  float* sum;  // [tokens, hidden]: out itself if it is fp32
  std::int64_t sum_stride;

  // One wave: runs in the order of their experts.
  const Run* runs;
  std::int64_t runs_count;
  const Group* groups;
  std::int64_t groups_count;
  std::int64_t max_groups;  // of a run, over all waves
  bool first_wave, last_wave;
  void *x, *h;  // packed, by offset of the run

  std::int64_t inter_slice, hidden_slice;  // rows of a work item, multiples of
  std::int64_t inter_panel, hidden_panel;  // rows that are multiplied in tiles together, if fewer
  int depth;                               // elements of a panel of weights
  char* scratch;
  std::size_t scratch_bytes;  // of a worker
  int workers;
  std::int64_t* next_item;  // shared by all workers; starts at 0
};

// A compiled kernel. Each phase takes items until none is left; between phases all workers wait.
struct Unit {
  const char* name;   // "avx2_fma"
  const char* label;  // "avx2-fma"
  int lanes;          // pairs of a tile
  int row_step;       // rows of a tile
  int depth;          // elements of a panel of weights
  int row_pairs;      // a run of at most so many pairs has rows
  bool bf16_only;     // multiplies bf16, not fp32
  std::size_t word_bytes;
  // Words of the packed hidden rows and of h, of a run.
  std::int64_t (*x_words)(const KernelArgs&, const Run&);
  std::int64_t (*h_words)(const KernelArgs&, const Run&);
  std::size_t (*scratch_bytes)(const KernelArgs&);
  void (*pack)(const KernelArgs&, int worker);     // hidden rows
  void (*gate_up)(const KernelArgs&, int worker);  // h
  void (*down)(const KernelArgs&, int worker);     // sums, and out after the last wave
};

}  // namespace tileformer::moe
