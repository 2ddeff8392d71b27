// Rows of codes as the rows of elements that the unit multiplies. Included by kernels only.
#pragma once

#include "ops/moe/common/weight_operand.h"
#include "tile/nibbles.h"
#include "tile/pack.h"

namespace tileformer::TILEFORMER_UNIT {

// Elements of W's memory that so many elements of a row take.
template <class W>
inline constexpr int kPacked = 1;
template <>
inline constexpr int kPacked<I4> = 2;
template <class W>
TF_INLINE std::int64_t stored(std::int64_t elements) {
  return elements / kPacked<W>;
}

inline constexpr int kCodeRun = 32;  // codes that share a scale at least

// kCodeRun codes, n of which exist, zeros beyond. (Groups of I4 are whole runs.)
TF_INLINE const std::int8_t* codes_of(const std::int8_t* p, std::int64_t n, std::int8_t* buffer, I8) {
  if (TF_LIKELY(n >= kCodeRun)) return p;
  __builtin_memset(buffer, 0, kCodeRun);
  copy_some<kCodeRun>(buffer, p, static_cast<int>(max_of<std::int64_t>(n, 0)));
  return buffer;
}
TF_INLINE const std::int8_t* codes_of(const std::uint8_t* p, std::int64_t n, std::int8_t* buffer, I4) {
  if (n > 0)
    nibbles_to_bytes(p, buffer);
  else
    __builtin_memset(buffer, 0, kCodeRun);
  return buffer;
}

// Elements [from, from + depth) of `rows` rows of an expert -> [padded][key_stride(depth)], zeros beyond.
template <class W>
TF_NOINLINE void dequantise_rows(const moe::WeightOperand& w, std::int64_t expert, std::int64_t first_row,
                                 int rows, int padded, std::int64_t from, std::int64_t depth, Word* out) {
  constexpr int kRowsAhead = 4;
  const std::int64_t stride = key_stride(depth), elements = stride * kElementsPerWord;
  const auto* code = static_cast<const typename W::Element*>(w.weight.data) + expert * w.weight.expert +
                     first_row * w.weight.row + stored<W>(from);
  const auto* scale =
      static_cast<const float*>(w.scale.data) + expert * w.scale.expert + first_row * w.scale.row;
  for (int r = 0; r < rows; ++r, code += w.weight.row, scale += w.scale.row, out += stride)
    for (std::int64_t d = 0; d < elements; d += kCodeRun) {
      alignas(32) std::int8_t buffer[kCodeRun];
      const auto* at = code + stored<W>(d);
      prefetch(at + kRowsAhead * w.weight.row);
      const std::int8_t* run = codes_of(at, depth - d, buffer, W{});
      const F s = set(w.group == 0 ? *scale : d < depth ? scale[(from + d) / w.group] : 0);
      TF_UNROLL for (int i = 0; i < kCodeRun; i += kVecLanes) if (d + i < elements)
          store_rounded(out + (d + i) / kElementsPerWord, mul(load_elements(run + i, I8{}), s));
    }
  __builtin_memset(out, 0, sizeof(Word) * static_cast<std::size_t>((padded - rows) * stride));
}

}  // namespace tileformer::TILEFORMER_UNIT
