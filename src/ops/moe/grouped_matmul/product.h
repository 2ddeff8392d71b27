// out = weight rows + bias, in the transposed form: lanes are rows of one expert.
//
//   pack       kLanes rows a group                                    X^T
//   multiply   for each run, for each slice of the rows of weights:
//                C^T = W X^T for all groups, C + bias -> out
//
// Included by kernels only.
#pragma once

#include "ops/moe/common/bias.h"
#include "ops/moe/common/items.h"
#include "ops/moe/common/row_run.h"
#include "ops/moe/common/slice_product.h"
#include "ops/moe/common/store_some.h"
#include "ops/moe/grouped_matmul/row_at.h"

namespace tileformer::TILEFORMER_UNIT {

using moe::grouped::ProductArgs;
using moe::grouped::Run;

// Few rows of an expert, whose weights stream.
template <class T>
using Streamed = StreamedRows<PlainRows<T>>;

TF_NOINLINE std::int64_t run_words(const ProductArgs& a, int rows, bool streamed) {
  if (!streamed) return ceil_div(rows, kLanes) * query_words(a.in_dim);
  return for_dtype(a.dtype, [&]<class T>(T) { return Streamed<T>::words(a.in_dim, rows); });
}

// A worker's buffers.
struct ProductScratch {
  Word* panel;  // of weights
  float *c, *y, *bias;
  std::size_t bytes;

  explicit ProductScratch(const ProductArgs& a, char* base = nullptr) {
    std::size_t at = 0;
    auto take = [&](std::int64_t size) {
      char* p = base + at;
      at += (static_cast<std::size_t>(size) + 63) / 64 * 64 + 64;
      return p;
    };
    const std::int64_t rows = slice_rows(a.out_slice);
    panel = reinterpret_cast<Word*>(take(sizeof(Word) * panel_words(rows)));
    c = reinterpret_cast<float*>(take(sizeof(float) * rows * kLanes * a.max_groups));
    y = reinterpret_cast<float*>(take(sizeof(float) * kMaxRowPairs * streamed_rows(rows)));
    bias = reinterpret_cast<float*>(take(sizeof(float) * (rows + kVecLanes)));
    bytes = (at + 4095) / 4096 * 4096;
  }
};

// Rows [first, first + n) of an expert's weights.
struct OutSlice {
  std::int64_t first;
  int n;
};

template <class T>
TF_NOINLINE void pack_group(const ProductArgs& a, const Run& run, int group) {
  Word* x = static_cast<Word*>(a.x) + run.x;
  if (run.streamed) {
    for (int i = 0; i < run.rows; ++i)
      Streamed<T>::template pack<T>(row_at<T>(a.rows, run.first_row + i), a.in_dim, i, run.rows, x);
    return;
  }
  const typename T::Element* row[kLanes];
  const int first = group * kLanes;
  for (int l = 0; l < kLanes; ++l)
    row[l] = first + l < run.rows ? row_at<T>(a.rows, run.first_row + first + l) : nullptr;
  pack_lanes<T>(row, a.in_dim, 1, x + group * query_words(a.in_dim));
}

// C^T [n][kLanes] + bias[n] -> elements of the first `lanes` rows from `out` on.
template <class T>
TF_NOINLINE void write_group(const float* c, std::int64_t n, const float* bias, int lanes,
                             typename T::Element* out, std::int64_t stride) {
  for (int lane = 0; lane < lanes; lane += kVecLanes)
    for (std::int64_t d = 0; d < n; d += kVecLanes) {
      F block[kVecLanes];
      TF_UNROLL for (int r = 0; r < kVecLanes; ++r) block[r] =
          d + r < n ? add(load(c + (d + r) * kLanes + lane), set(bias[d + r])) : zero();
      transpose(block);
      TF_UNROLL for (int r = 0; r < kVecLanes; ++r) {
        if (lane + r >= lanes) break;
        store_some_of<T>(out + (lane + r) * stride + d, block[r], n - d);
      }
    }
}

template <class T>
TF_INLINE const typename T::Element* weights_row(const ProductArgs& a, std::int64_t expert,
                                                 std::int64_t row) {
  const moe::ExpertOperand& w = a.weights.weight;
  return static_cast<const typename T::Element*>(w.data) + expert * w.expert + row * w.row;
}

template <class T>
TF_NOINLINE void multiply_tiles(const ProductArgs& a, const ProductScratch& x, const Run& run,
                                const OutSlice& s, const void* next) {
  const std::int64_t part_rows = slice_rows(s.n);
  const int groups = static_cast<int>(ceil_div(run.rows, kLanes)), last = run.rows - (groups - 1) * kLanes;
  slice_product<T>({&a.weights, run.expert, 1, {s.first, 0}, s.n, a.in_dim, next},
                   {static_cast<const Word*>(a.x) + run.x, query_words(a.in_dim), groups, last <= kLanes / 2,
                    x.c, part_rows * kLanes, x.panel});
  for (int g = 0; g < groups; ++g)
    write_group<T>(x.c + g * part_rows * kLanes, s.n, x.bias, g + 1 < groups ? kLanes : last,
                   row_at<T>(a.out, run.first_row + g * kLanes) + s.first, a.out.stride);
}

template <class T>
TF_NOINLINE void multiply_streamed(const ProductArgs& a, const ProductScratch& x, const Run& run,
                                   const OutSlice& s) {
  const std::int64_t y_stride = streamed_rows(s.n);
  Streamed<T>::sums({&a.weights, run.expert, s.first, s.n, a.in_dim, run.rows,
                     static_cast<const Word*>(a.x) + run.x, x.y, y_stride});
  for (int i = 0; i < run.rows; ++i) {
    auto* to = row_at<T>(a.out, run.first_row + i) + s.first;
    for (int d = 0; d < s.n; d += kVecLanes)
      store_some_of<T>(to + d, add(load(x.y + i * y_stride + d), load(x.bias + d)), s.n - d);
  }
}

TF_NOINLINE void pack(const ProductArgs& a) {
  for_dtype(a.dtype, [&]<class T>(T) {
    for_items(a.workers.next_item, a.groups_count,
              [&](std::int64_t i) { pack_group<T>(a, a.runs[a.groups[i].run], a.groups[i].index); });
  });
}

TF_NOINLINE void multiply(const ProductArgs& a, int worker) {
  const ProductScratch x(a, a.workers.scratch + a.workers.scratch_bytes * worker);
  const std::int64_t slices = ceil_div(a.out_dim, a.out_slice), items = a.runs_count * slices;
  enter_unit();
  for_dtype(a.dtype, [&]<class T>(T) {
    for_items(a.workers.next_item, items, [&](std::int64_t item) {
      const Run& run = a.runs[item / slices];
      const std::int64_t first = item % slices * a.out_slice;
      const OutSlice s{first, static_cast<int>(min_of(a.out_slice, a.out_dim - first))};
      load_bias(a.weights, run.expert, s.first, s.n, x.bias);
      if (run.streamed) return multiply_streamed<T>(a, x, run, s);
      // The rows of the item that this worker is likely to take next.
      const std::int64_t later = item + a.workers.count;
      multiply_tiles<T>(a, x, run, s,
                        later < items
                            ? weights_row<T>(a, a.runs[later / slices].expert, later % slices * a.out_slice)
                            : nullptr);
    });
  });
  leave_unit();
}

TF_NOINLINE std::size_t product_scratch(const ProductArgs& a) { return ProductScratch(a).bytes; }

}  // namespace tileformer::TILEFORMER_UNIT
