// What the kernel is handed: plain data, checked.
#pragma once

#include <cstdint>

#include "base/operand.h"

namespace tileformer::merge_attention {

using tileformer::Operand;

struct KernelArgs {
  const Operand *part_out, *part_lse;  // [parts]
  std::int64_t parts;
  Operand out;
  Operand lse;  // data null: not wanted
  std::int64_t batch, heads, seq, dim_v;

  std::int64_t rows_per_item;
  std::int64_t* next_row;  // shared by all workers; starts at 0
};

// A compiled kernel: takes rows until none is left.
struct Unit {
  const char* name;  // "avx2_fma"
  void (*run)(const KernelArgs&);
};

}  // namespace tileformer::merge_attention
