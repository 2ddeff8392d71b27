// From rows in memory to packed operands and back. Rows are given by address, so that any strides, and tiles
// whose lanes belong to different heads, are all the same here. Nothing beyond a row's `dim` elements is
// touched.
#pragma once

#include "tile/rows.h"

namespace tileformer::TILEFORMER_UNIT {

// Rows of Q (null: zeros) -> [words][kLanes]: word w of row l stands at [w][l], times the scale where the
// unit wants it.
template <class T>
TF_NOINLINE void pack_lanes(const typename T::Element* const (&row)[kLanes], std::int64_t dim, float scale,
                            Word* out) {
  const F factor = set(scale);
  for (int lane = 0; lane < kLanes; lane += kVecLanes)
    for (std::int64_t w = 0; w < steps_of(dim); w += kVecLanes) {
      const std::int64_t d = w * kElementsPerWord;
      Words block[kVecLanes];
      TF_UNROLL for (int r = 0; r < kVecLanes; ++r) {
        const auto* p = row[lane + r];
        block[r] = p ? scaled_query(load_row_words<T>(p + d, dim - d), factor) : zero_words();
      }
      transpose_words(block);
      TF_UNROLL for (int r = 0; r < kVecLanes; ++r) store_words(out + (w + r) * kLanes + lane, block[r]);
    }
}

// Rows of Q or dO (null: zeros) as the steps of a product that sums over lanes: [slice of kLanes columns]
// [kLaneWords][kLanes], slices `slice_words` apart, zeros beyond dim.
template <class T>
TF_NOINLINE void pack_lane_steps(const typename T::Element* const (&row)[kLanes], std::int64_t dim,
                                 std::int64_t slice_words, Word* out) {
  for (std::int64_t d = 0; d < dim; d += kLanes, out += slice_words)
    for (int s = 0; s < kLaneWords; ++s) {
      const typename T::Element* at[kElementsPerWord];
      TF_UNROLL for (int e = 0; e < kElementsPerWord; ++e) {
        const auto* p = row[s * kElementsPerWord + e];
        at[e] = p ? p + d : nullptr;
      }
      Words words[kVecs];
      load_step_rows<T>(at, dim - d, words);
      TF_UNROLL for (int j = 0; j < kVecs; ++j) store_words(out + s * kLanes + j * kVecLanes, words[j]);
    }
}

// `keys` rows -> [padded][key_stride(dim)], zeros beyond.
template <class T, class Rows>
TF_NOINLINE void pack_keys(const Rows& rows, int keys, int padded, std::int64_t dim, Word* out) {
  const std::int64_t out_stride = key_stride(dim);
  RowRun<T> run, next = rows.run(0);
  for (int first = 0; first < padded; first += kRunRows) {
    run = next;
    const int later_rows = keys - first - kRunRows;
    if (later_rows > 0) next = rows.run(first + kRunRows);
    for (int r = 0; r < min_of(kRunRows, padded - first); ++r, out += out_stride) {
      const typename T::Element *row = run.row(r), *later = next.row(r);
      const bool exists = first + r < keys;
      const F scale = set(exists ? run.scale(r) : 0);
      for (std::int64_t w = 0; w < out_stride; w += kVecLanes) {
        const std::int64_t d = w * kElementsPerWord;
        if (r < later_rows) prefetch(later + d);
        store_words(out + w,
                    exists ? scaled_row<T>(load_row_words<T>(row + d, dim - d), scale) : zero_words());
      }
    }
  }
}

// O^T [dim_v][kLanes], lane l times factor[l] -> rows (null: none).
template <class T>
TF_NOINLINE void write_lanes(const float* o, std::int64_t dim_v, const float* factor,
                             typename T::Element* const (&row)[kLanes]) {
  for (int lane = 0; lane < kLanes; lane += kVecLanes) {
    const F f = load(factor + lane);
    // A query that saw nothing has the factor zero; its O may never have been written.
    const M none = equal(f, zero());
    for (std::int64_t d = 0; d < dim_v; d += kVecLanes) {
      const std::int64_t n = dim_v - d;
      F block[kVecLanes];
      TF_UNROLL for (int r = 0; r < kVecLanes; ++r) block[r] =
          r < n ? select(none, zero(), mul(f, load(o + (d + r) * kLanes + lane))) : zero();
      transpose(block);
      TF_UNROLL for (int r = 0; r < kVecLanes; ++r) {
        auto* p = row[lane + r];
        if (!p) continue;
        if (TF_LIKELY(n >= kVecLanes))
          store_elements(p + d, block[r], T{});
        else
          store_some<T>(p + d, block[r], static_cast<int>(n));
      }
    }
  }
}

// The way back: rows (null: zeros) -> fp32 [dim, rounded up to whole vectors][kLanes], zeros beyond dim.
template <class T>
TF_NOINLINE void read_lanes(const typename T::Element* const (&row)[kLanes], std::int64_t dim, float* o) {
  for (int lane = 0; lane < kLanes; lane += kVecLanes)
    for (std::int64_t d = 0; d < dim; d += kVecLanes) {
      F block[kVecLanes];
      TF_UNROLL for (int r = 0; r < kVecLanes; ++r) {
        const auto* p = row[lane + r];
        block[r] = p ? load_up_to<T>(p + d, dim - d) : zero();
      }
      transpose(block);
      TF_UNROLL for (int r = 0; r < kVecLanes; ++r) store(o + (d + r) * kLanes + lane, block[r]);
    }
}

}  // namespace tileformer::TILEFORMER_UNIT
