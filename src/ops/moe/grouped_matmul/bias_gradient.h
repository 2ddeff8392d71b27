// Sums of an expert's rows, for the gradient of its bias. Included by kernels only.
#pragma once

#include "ops/moe/common/items.h"
#include "ops/moe/common/store_some.h"
#include "ops/moe/grouped_matmul/row_at.h"

namespace tileformer::TILEFORMER_UNIT {

using moe::grouped::BiasGradientArgs;

inline constexpr int kBiasVecs = 8;  // columns of a work item, in vectors
// Rows that are summed before their sum is added to the others': a sum of sums is rounded less than one long
// sum.
inline constexpr std::int64_t kBiasRows = 64;

template <class T, class G>
TF_NOINLINE void sum_rows(const BiasGradientArgs& a, std::int64_t expert, std::int64_t first_column) {
  F total[kBiasVecs];
  TF_UNROLL for (int j = 0; j < kBiasVecs; ++j) total[j] = zero();
  const std::int64_t n = a.out_dim - first_column, end = a.offsets[expert + 1];
  for (std::int64_t first = a.offsets[expert]; first < end; first += kBiasRows) {
    F sum[kBiasVecs];
    TF_UNROLL for (int j = 0; j < kBiasVecs; ++j) sum[j] = zero();
    for (std::int64_t r = first; r < min_of(first + kBiasRows, end); ++r) {
      const auto* row = row_at<T>(a.grad_out, r) + first_column;
      TF_UNROLL for (int j = 0; j < kBiasVecs; ++j) if (j * kVecLanes < n) sum[j] =
          add(sum[j], load_up_to<T>(row + j * kVecLanes, n - j * kVecLanes));
    }
    TF_UNROLL for (int j = 0; j < kBiasVecs; ++j) total[j] = add(total[j], sum[j]);
  }
  auto* grad = static_cast<typename G::Element*>(a.grad) + expert * a.grad_expert + first_column;
  TF_UNROLL for (int j = 0; j < kBiasVecs; ++j) if (j * kVecLanes < n)
      store_some_of<G>(grad + j * kVecLanes, total[j], n - j * kVecLanes);
}

TF_NOINLINE void bias_gradient(const BiasGradientArgs& a) {
  constexpr std::int64_t kColumns = kBiasVecs * kVecLanes;
  const std::int64_t slices = ceil_div(a.out_dim, kColumns);
  for_dtype(a.dtype, [&]<class T>(T) {
    for_result_dtype(a.grad_dtype, [&]<class G>(G) {
      for_items(a.workers.next_item, a.experts * slices,
                [&](std::int64_t item) { sum_rows<T, G>(a, item / slices, item % slices * kColumns); });
    });
  });
}

}  // namespace tileformer::TILEFORMER_UNIT
