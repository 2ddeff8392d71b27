// Random parts of an attention, in guarded memory, and merge_attention_states on every unit of the machine.
#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "guarded_tensors.h"
#include "ops/merge_attention/units.h"
#include "tileformer/merge_attention.h"
#include "unit_targets.h"

namespace tileformer::test {

struct MergeShape {
  std::int64_t parts = 2, batch = 2, heads = 3, seq = 5, dim_v = 40;
  DType dtype = DType::f32;                    // of out
  std::vector<DType> part_dtypes{DType::f32};  // taken in turns
  bool seq_first = false;                      // [batch, seq, heads, dim_v]
};

class MergeData {
 public:
  MergeAttentionArgs args;

  explicit MergeData(const MergeShape& shape, Edge edge = Edge::end) : shape_(shape), tensors_(edge) {
    const DType statistics = shape.dtype == DType::f64 ? DType::f64 : DType::f32;
    std::mt19937_64 random(1);
    std::normal_distribution<double> normal;
    const Sizes lse{shape.batch, shape.heads, shape.seq};
    for (std::int64_t p = 0; p < shape.parts; ++p) {
      const DType dtype = shape.part_dtypes[std::size_t(p) % shape.part_dtypes.size()];
      args.part_out.push_back(tensors_.allocate(dtype, 4, sizes(), strides()));
      args.part_lse.push_back(tensors_.allocate_dense(statistics, 3, lse));
      for_each_index(args.part_out.back(),
                     [&](const Index& at) { set(args.part_out.back(), at, normal(random)); });
      for_each_index(args.part_lse.back(),
                     [&](const Index& at) { set(args.part_lse.back(), at, 20 + 3 * normal(random)); });
    }
    args.out = tensors_.allocate_output(shape.dtype, 4, sizes(), strides());
    args.lse = tensors_.allocate_output(statistics, 3, lse, dense_strides(3, lse));
  }

  bool clear_outputs() const { return tensors_.clear_outputs(); }

 private:
  Sizes sizes() const { return {shape_.batch, shape_.heads, shape_.seq, shape_.dim_v}; }
  Sizes strides() const {
    const auto& s = shape_;
    const std::int64_t row = s.dim_v + 3;
    return s.seq_first ? Sizes{s.seq * s.heads * row, row, s.heads * row, 1}
                       : Sizes{s.heads * s.seq * row, s.seq * row, row, 1};
  }

  MergeShape shape_;
  GuardedTensors tensors_;
};

using MergeTarget = UnitTarget<merge_attention::Unit>;

inline const std::vector<MergeTarget>& merge_targets() {
  static const std::vector<MergeTarget> all = unit_targets(merge_attention::units());
  return all;
}

inline Status run_merge(const MergeTarget& on, const MergeAttentionArgs& args,
                        Executor& executor = serial_executor()) {
  const ForcedUnit forced(on);
  if (!forced.status()) return forced.status();
  return merge_attention_states(args, executor);
}

}  // namespace tileformer::test
