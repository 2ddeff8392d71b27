// The rows of gate_up that a slice of inter takes. Included by kernels only.
#pragma once

#include "ops/moe/common/slice_product.h"

namespace tileformer::TILEFORMER_UNIT {

// Rows of gate_up that belong to elements [first, first + n) of inter. In a product of them, gate i stands at
// row gate(i).
struct InterSlice {
  std::int64_t first;
  int n;
  bool interleaved;
  std::int64_t part_rows;  // from gates to ups

  TF_MEMBER InterSlice(std::int64_t begin, std::int64_t end, bool by_turns)
      : first(begin),
        n(static_cast<int>(end - begin)),
        interleaved(by_turns),
        part_rows(slice_rows(rows())) {}

  TF_MEMBER int parts() const { return interleaved ? 1 : 2; }
  TF_MEMBER int rows() const { return interleaved ? 2 * n : n; }  // of a part
  TF_MEMBER std::int64_t first_row() const { return interleaved ? 2 * first : first; }
  TF_MEMBER std::int64_t gate(int i) const { return interleaved ? 2 * i : i; }
  TF_MEMBER std::int64_t up(int i) const { return interleaved ? 2 * i + 1 : part_rows + i; }
};

}  // namespace tileformer::TILEFORMER_UNIT
