// Rows copied to the order of experts, summed back, and the gradients of the sum; bound by memory.
#include "tile/unit.h"
//
#include "base/scalar.h"
#include "ops/moe/permute/kernel_args.h"
#include "tile/stream.h"

namespace tileformer::TILEFORMER_UNIT {
namespace {

using permute_op::CopyArgs;
using permute_op::Items;
using permute_op::Rows;
using permute_op::SpreadArgs;
using permute_op::SumArgs;
using permute_op::Weights;

constexpr int kBlock = 4;  // vectors of a row at a time: independent accumulators

template <class Work>
TF_INLINE void take(const Items& items, Work work) {
  for (;;) {
    const std::int64_t first = __atomic_fetch_add(items.next, items.step, __ATOMIC_RELAXED);
    if (first >= items.count) return;
    for (std::int64_t i = first; i < min_of(first + items.step, items.count); ++i) work(i);
  }
}

template <class T>
TF_INLINE typename T::Element* row_of(const Rows& rows, std::int64_t r) {
  return static_cast<typename T::Element*>(rows.data) + r * rows.stride;
}

TF_INLINE float weight_at(const Weights& w, std::int64_t t, std::int64_t j) {
  const std::int64_t i = t * w.token + j * w.slot;
  switch (w.dtype) {
    case DType::f32: return static_cast<const float*>(w.data)[i];
    case DType::f16: return f32_from_f16(static_cast<const std::uint16_t*>(w.data)[i]);
    default: return f32_from_bf16(static_cast<const std::uint16_t*>(w.data)[i]);
  }
}

TF_INLINE void set_weight(const Weights& w, std::int64_t t, std::int64_t j, float x) {
  const std::int64_t i = t * w.token + j * w.slot;
  switch (w.dtype) {
    case DType::f32: static_cast<float*>(w.data)[i] = x; break;
    case DType::f16: static_cast<std::uint16_t*>(w.data)[i] = f16_from_f32(x); break;
    default: static_cast<std::uint16_t*>(w.data)[i] = bf16_from_f32(x); break;
  }
}

template <class T>
TF_INLINE void store_up_to(typename T::Element* p, F x, std::int64_t n) {
  if (TF_LIKELY(n >= kVecLanes))
    store_elements(p, x, T{});
  else if (n > 0)
    store_some<T>(p, x, static_cast<int>(n));
}

void copy(const CopyArgs& a) {
  const auto bytes = static_cast<std::size_t>(a.row_bytes);
  take(a.items, [&](std::int64_t r) {
    char* to = static_cast<char*>(a.rows.data) + r * a.rows.stride * a.element_size;
    if (r >= a.pairs) {
      a.source[r] = -1;
      __builtin_memset(to, 0, bytes);
      return;
    }
    const moe::Pair pair = a.pair[r];
    a.source[r] = pair.token * a.k + pair.slot;
    const char* from =
        static_cast<const char*>(a.tokens.data) + pair.token * a.tokens.stride * a.element_size;
    if (a.stream)
      stream_copy(to, from, bytes);
    else
      __builtin_memcpy(to, from, bytes);
  });
  stream_end();
}

template <class T>
TF_NOINLINE void sum_token(const SumArgs& a, std::int64_t t) {
  const std::int64_t begin = a.map.begin[t], end = a.map.begin[t + 1];
  typename T::Element* const out = row_of<T>(a.out, t);
  for (std::int64_t d = 0; d < a.hidden; d += kBlock * kVecLanes) {
    F sum[kBlock];
    TF_UNROLL for (int i = 0; i < kBlock; ++i) sum[i] = zero();
    for (std::int64_t n = begin; n < end; ++n) {
      const std::int64_t r = a.map.row[n];
      const F weight = set(weight_at(a.weights, t, a.source[r * a.source_stride] - t * a.k));
      const typename T::Element* const row = row_of<T>(a.rows, r) + d;
      TF_UNROLL for (int i = 0; i < kBlock; ++i) sum[i] =
          fma(weight, load_up_to<T>(row + i * kVecLanes, a.hidden - d - i * kVecLanes), sum[i]);
    }
    TF_UNROLL for (int i = 0; i < kBlock; ++i)
        store_up_to<T>(out + d + i * kVecLanes, sum[i], a.hidden - d - i * kVecLanes);
  }
}

template <class T>
TF_INLINE void scale_row(typename T::Element* to, const typename T::Element* from, float factor,
                         std::int64_t hidden) {
  for (std::int64_t d = 0; d < hidden; d += kVecLanes)
    store_up_to<T>(to + d, mul(set(factor), load_up_to<T>(from + d, hidden - d)), hidden - d);
}

template <class T>
TF_INLINE float product(const typename T::Element* a, const typename T::Element* b, std::int64_t hidden) {
  F dot[kBlock];
  TF_UNROLL for (int i = 0; i < kBlock; ++i) dot[i] = zero();
  for (std::int64_t d = 0; d < hidden; d += kBlock * kVecLanes) TF_UNROLL for (int i = 0; i < kBlock; ++i) {
      const std::int64_t at = d + i * kVecLanes;
      dot[i] = fma(load_up_to<T>(a + at, hidden - at), load_up_to<T>(b + at, hidden - at), dot[i]);
    }
  return sum_of_lanes(add(add(dot[0], dot[1]), add(dot[2], dot[3])));
}

template <class T>
TF_NOINLINE void spread_token(const SpreadArgs& a, std::int64_t t) {
  const auto* const grad_out = row_of<T>(a.grad_out, t);
  if (a.grad_weights.data)
    for (std::int64_t j = 0; j < a.k; ++j) set_weight(a.grad_weights, t, j, 0);
  for (std::int64_t n = a.map.begin[t]; n < a.map.begin[t + 1]; ++n) {
    const std::int64_t r = a.map.row[n], j = a.source[r * a.source_stride] - t * a.k;
    if (a.grad_weights.data)
      set_weight(a.grad_weights, t, j, product<T>(grad_out, row_of<T>(a.rows, r), a.hidden));
    if (a.grad_rows.data)
      scale_row<T>(row_of<T>(a.grad_rows, r), grad_out, weight_at(a.weights, t, j), a.hidden);
  }
}

template <class T>
void spread_items(const SpreadArgs& a) {
  take(a.items, [&](std::int64_t i) {
    if (i < a.tokens) return spread_token<T>(a, i);
    if (a.grad_rows.data)
      __builtin_memset(row_of<T>(a.grad_rows, a.map.row[a.map.begin[a.tokens] + i - a.tokens]), 0,
                       static_cast<std::size_t>(a.hidden) * sizeof(typename T::Element));
  });
}

template <class T>
void sum_items(const SumArgs& a) {
  take(a.items, [&](std::int64_t t) { sum_token<T>(a, t); });
}

void sum(const SumArgs& a) {
  switch (a.dtype) {
    case DType::f32: return sum_items<F32>(a);
    case DType::f16: return sum_items<F16>(a);
    default: return sum_items<BF16>(a);
  }
}

void spread(const SpreadArgs& a) {
  switch (a.dtype) {
    case DType::f32: return spread_items<F32>(a);
    case DType::f16: return spread_items<F16>(a);
    default: return spread_items<BF16>(a);
  }
}

}  // namespace

extern const permute_op::Unit permute_unit;
const permute_op::Unit permute_unit = {TF_STRINGIZE(TILEFORMER_UNIT), copy, sum, spread};

}  // namespace tileformer::TILEFORMER_UNIT
