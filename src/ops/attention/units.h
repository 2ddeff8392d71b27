// The compiled attention kernels, one per unit.
#pragma once

#include <cstddef>

#include "ops/attention/backward/kernel_args.h"
#include "ops/attention/kernel_args.h"

namespace tileformer::attention {

struct Unit {
  const char* name;   // "avx2_fma"
  const char* label;  // "avx2-fma"
  int lanes;          // queries of a tile
  int key_rows;       // keys of a score tile
  int key_block;      // keys of a block if the sequence is long
  bool bf16_only;     // multiplies bf16, not fp32
  std::size_t (*scratch_bytes)(const KernelArgs&);
  // Takes items until none is left.
  void (*run)(const KernelArgs&, int worker);
};

// The decode kernel of a unit.
struct DecodeKernel {
  // Floats of one row of a partial result.
  std::int64_t (*partial_row_floats)(const KernelArgs&);
  std::size_t (*scratch_bytes)(const KernelArgs&);
  void (*run)(const KernelArgs&, int worker);
};

// The backward of a unit; lanes, key rows and the rest are those of the forward.
struct BackwardKernel {
  int key_block;     // keys of a block if the sequence is long
  int block_groups;  // lane groups of a query block
  std::size_t (*scratch_bytes)(const BackwardKernelArgs&);
  std::int64_t (*slot_floats_per_key)(const BackwardKernelArgs&);
  void (*run)(const BackwardKernelArgs&, int worker);
};

const DecodeKernel& decode_kernel_of(const Unit& unit);
const BackwardKernel& backward_kernel_of(const Unit& unit);

}  // namespace tileformer::attention
