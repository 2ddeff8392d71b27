// The parts of decode that depend on how K and V are stored, chosen once a call. Included by kernels only.
#pragma once

#include "ops/attention/decode/row_state.h"
#include "ops/attention/mask_block.h"
#include "ops/attention/storage.h"

namespace tileformer::TILEFORMER_UNIT {

// RunOf, whatever the element type.
struct Run {
  const void* rows;
  std::int64_t stride;  // elements
  int count;
  const void *near, *far;
};

template <class T>
TF_INLINE RunOf<T> run_of(const Run& run, int tile, int tiles) {
  using E = const typename T::Element*;
  return {static_cast<E>(run.rows), run.stride, run.count, static_cast<E>(run.near),
          static_cast<E>(run.far),  tile,       tiles};
}

// Scores of all rows for one run of keys; s: their column of the scores.
template <class T>
TF_NOINLINE void run_scores(const Run& run, const DecodeScratch& x, const Word* query, float* s) {
  const int steps = static_cast<int>(x.query_words / (kKeyStepWords * kVecLanes));
  for_row_tiles(x.rows.count, kRowScoreQueries, [&](int first, int count, int tile, int tiles) {
    const PackedRows q{query + first * x.query_words, x.query_words, nullptr};
    score_run_of<T>(count, run_of<T>(run, tile, tiles), q, steps, s + first * kChunkKeys, kChunkKeys);
  });
}

// O of all rows += their probabilities times one run of V, which starts at key `first_key` of the chunk.
template <class T>
TF_NOINLINE void run_outputs(const Run& run, const DecodeScratch& x, int first_key, float* o) {
  const int steps = static_cast<int>(x.o_stride / kRowStep);
  const Word* p = x.probabilities + first_key / RowProduct<T>::kValueKeys;
  for_row_tiles(x.rows.count, kRowOutputQueries, [&](int first, int count, int tile, int tiles) {
    output_run_of<T>(count, run_of<T>(run, tile, tiles),
                     PackedRows{p + first * kChunkWords, kChunkWords, x.weight_scales + first}, steps,
                     o + first * x.o_stride, x.o_stride);
  });
}

// n rows of `dim` elements to [kRunRows][padded_dim], zeros beyond: rows that cannot be read in place.
template <class T>
TF_NOINLINE void copy_run(const void* rows, std::int64_t stride, int n, std::int64_t dim, void* out) {
  using E = typename T::Element;
  const std::int64_t padded = padded_dim(dim);
  E* to = static_cast<E*>(out);
  for (int i = 0; i < kRunRows; ++i, to += padded) {
    const E* from = static_cast<const E*>(rows) + i * stride;
    const std::int64_t copied = i < n ? dim : 0;
    __builtin_memcpy(to, from, copied * sizeof(E));
    __builtin_memset(to + copied, 0, (padded - copied) * sizeof(E));
  }
}

// Returns what the row's scores are to be multiplied by.
template <class T, class TQ>
TF_NOINLINE float pack_query_row(const void* q, std::int64_t dim, float scale, Word* out) {
  const auto* from = static_cast<const typename TQ::Element*>(q);
  for (std::int64_t d = 0; d < dim; d += kRowStep, out += kKeyStepWords * kVecLanes)
    pack_query_step<T, TQ>(from + d, dim - d, scale, out);
  return 1;
}
// The same in whole numbers. A row that is not finite gets the factor NaN.
template <class TQ>
TF_NOINLINE float pack_whole_query_row(const void* q, std::int64_t dim, float scale, Word* out) {
  alignas(64) float x[kRowStep * kKeyStepWords], lanes[kVecLanes];
  const auto* from = static_cast<const typename TQ::Element*>(q);
  F largest = zero(), bad = zero();
  for (std::int64_t d = 0; d < dim; d += kVecLanes) {
    const F part = mul(set(scale), load_up_to<TQ>(from + d, dim - d));
    largest = max(abs(part), largest);
    bad = fma(part, zero(), bad);
  }
  store(lanes, largest);
  float m = 0;
  for (float lane : lanes) m = lane > m ? lane : m;
  const bool finite = all(equal(bad, bad));
  const float to_whole = finite && m > 0 ? kLargestShort / m : 0;
  for (std::int64_t d = 0; d < dim; d += kRowStep, out += kVecLanes) {
    pack_query_step<F32, TQ>(from + d, dim - d, scale, x);
    if (!finite) store(x, zero()), store(x + kVecLanes, zero());
    TF_UNROLL for (int i = 0; i < kRowStep; i += kVecLanes)
        store_shorts(reinterpret_cast<std::int16_t*>(out) + i, mul(load(x + i), set(to_whole)));
  }
  return finite ? m / kLargestShort : kNaN;
}

template <class T>
TF_NOINLINE void to_natural_order(F (&x)[2]) {
  natural_order<T>(x);
}

// Where value steps of T leave column c of a step: lane place[c].
template <class T>
TF_NOINLINE void places_of_columns(int (&place)[kRowStep]) {
  alignas(64) float index[kRowStep];
  for (int i = 0; i < kRowStep; ++i) index[i] = static_cast<float>(i);
  F x[2] = {load(index), load(index + kVecLanes)};
  natural_order<T>(x);
  store(index, x[0]);
  store(index + kVecLanes, x[1]);
  for (int i = 0; i < kRowStep; ++i) place[i] = static_cast<int>(index[i]);
}

// In the unit of value steps.
template <class T>
TF_NOINLINE float element_at(const void* row, std::int64_t d) {
  return element_as_float(static_cast<const typename T::Element*>(row) + d, T{}) / RowProduct<T>::kUnit;
}

// What is not finite becomes zero.
template <class T>
TF_NOINLINE void make_finite(void* elements, std::int64_t n) {
  auto* p = static_cast<typename T::Element*>(elements);
  for (std::int64_t i = 0; i < n; ++i) {
    const float x = element_as_float(p + i, T{});
    if (x - x != 0) p[i] = 0;
  }
}

// The scale of a row whose codes products take for numbers: NaN if one of them is none.
template <class T>
TF_NOINLINE float row_scale(float scale, const void* row, std::int64_t dim) {
  if constexpr (RowProduct<T>::kUnit != 1) {
    if (has_nan_code(static_cast<const typename T::Element*>(row), dim)) return kNaN;
  }
  return scale * RowProduct<T>::kUnit;
}

struct KeyType {
  float (*pack_query)(const void* q, std::int64_t dim, float scale, Word* out);
  void (*copy)(const void* rows, std::int64_t stride, int n, std::int64_t dim, void* out);
  void (*scores)(const Run& run, const DecodeScratch& x, const Word* query, float* s);
  float (*scale)(float scale, const void* row, std::int64_t dim);
};
struct ValueType {
  void (*copy)(const void* rows, std::int64_t stride, int n, std::int64_t dim, void* out);
  void (*outputs)(const Run& run, const DecodeScratch& x, int first_key, float* o);
  bool whole;  // takes probabilities in whole numbers
  void (*natural)(F (&x)[2]);
  void (*make_finite)(void* elements, std::int64_t n);
  void (*places)(int (&place)[kRowStep]);
  float (*element)(const void* row, std::int64_t d);
  float (*scale)(float scale, const void* row, std::int64_t dim);
};

template <class T, class TQ>
TF_INLINE KeyType key_type_of() {
  if constexpr (RowProduct<T>::kWhole)
    return {&pack_whole_query_row<TQ>, &copy_run<T>, &run_scores<T>, &row_scale<T>};
  else
    return {&pack_query_row<T, TQ>, &copy_run<T>, &run_scores<T>, &row_scale<T>};
}
template <class T>
TF_INLINE KeyType key_type_of(DType query) {
  if constexpr (kElementsPerWord == 1) {
    if (query == DType::f32) return key_type_of<T, F32>();
    if (query == DType::f16) return key_type_of<T, F16>();
  }
  return key_type_of<T, BF16>();
}
template <class T>
TF_INLINE ValueType value_type_of() {
  return {&copy_run<T>,    &run_outputs<T>,       RowProduct<T>::kWhole, &to_natural_order<T>,
          &make_finite<T>, &places_of_columns<T>, &element_at<T>,        &row_scale<T>};
}

TF_NOINLINE KeyType key_type(DType key, DType query) {
  return for_storage(key, [&]<class T>(T) { return key_type_of<T>(query); });
}
TF_NOINLINE ValueType value_type(DType value) {
  return for_storage(value, []<class T>(T) { return value_type_of<T>(); });
}

}  // namespace tileformer::TILEFORMER_UNIT
