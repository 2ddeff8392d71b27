// Where the rows of K or V of one sequence and kv head stand: in one tensor or in pages. Included by kernels
// only.
#pragma once

#include "ops/attention/kernel_args.h"
#include "tile/rows.h"

namespace tileformer::TILEFORMER_UNIT {

// A page holds a multiple of kRunRows, so a run of rows that starts at a multiple of it stands one `row`
// stride after another.
template <class Element>
struct KeyRows {
  Element* base;               // of the kv head: row 0 of the sequence, or of page 0
  std::int64_t row, page;      // strides in elements
  const std::int32_t* blocks;  // null: not paged
  std::int64_t page_size;

  TF_MEMBER KeyRows(const attention::KernelArgs& a, const attention::KernelSequence& s,
                    const attention::Operand& x, std::int64_t kv_head)
      : base(static_cast<Element*>(x.data) + kv_head * x.head),
        row(x.row),
        page(x.batch),
        blocks(s.blocks),
        page_size(a.page_size) {
    if (!blocks) base += s.batch * x.batch + s.first_key * x.row;
  }
  TF_MEMBER Element* at(std::int64_t key) const {
    if (!blocks) return base + key * row;
    return base + blocks[key / page_size] * page + key % page_size * row;
  }
};

}  // namespace tileformer::TILEFORMER_UNIT
