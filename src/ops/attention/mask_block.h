// The part of attn_mask that one lane group and key block need, transposed to [key][lane] on the chip. A mask
// is read where it lies, once, whatever its strides; nothing of size seq_q * seq_k is made. Included by
// kernels only.
#pragma once

#include "base/scalar.h"
#include "ops/attention/lane_group.h"

namespace tileformer::TILEFORMER_UNIT {

struct MaskBlock {
  float* bias;              // [key_block][kLanes], times log2(e); float masks
  std::uint8_t* allowed;    // [key_block][kLanes]; bool masks
  const void* row[kLanes];  // mask rows that stand in the block now
  std::int64_t first_key;
  int keys;
  bool none;  // every position is excluded
};

TF_INLINE void transpose_bytes(std::uint64_t (&x)[8]) {
  // 8 x 8: halves, quarters and eighths of the words change places (byte 0 is the lowest).
  for (int i = 0; i < 4; ++i) {
    const std::uint64_t t = ((x[i] >> 32) ^ x[i + 4]) & 0x00000000ffffffffull;
    x[i] ^= t << 32;
    x[i + 4] ^= t;
  }
  for (int i = 0; i < 8; i += (i & 1) ? 3 : 1) {
    const std::uint64_t t = ((x[i] >> 16) ^ x[i + 2]) & 0x0000ffff0000ffffull;
    x[i] ^= t << 16;
    x[i + 2] ^= t;
  }
  for (int i = 0; i < 8; i += 2) {
    const std::uint64_t t = ((x[i] >> 8) ^ x[i + 1]) & 0x00ff00ff00ff00ffull;
    x[i] ^= t << 8;
    x[i + 1] ^= t;
  }
}

// Returns whether any position is allowed.
TF_NOINLINE bool load_bool_mask(const MaskBlock& m, std::int64_t column, bool same_rows) {
  std::uint64_t seen = 0;
  const auto* const* row = reinterpret_cast<const std::uint8_t* const*>(m.row);
  if (same_rows) {
    for (int j = 0; j < m.keys; ++j) {
      const std::uint8_t x = row[0][j * column];
      seen |= x;
      for (int l = 0; l < kLanes; ++l) m.allowed[j * kLanes + l] = x;
    }
    return seen != 0;
  }
  int j = 0;
  if (column == 1)
    for (; j + 8 <= m.keys; j += 8)
      for (int lane = 0; lane < kLanes; lane += 8) {
        std::uint64_t x[8];
        for (int l = 0; l < 8; ++l) {
          __builtin_memcpy(&x[l], row[lane + l] + j, 8);
          seen |= x[l];
        }
        transpose_bytes(x);
        for (int c = 0; c < 8; ++c) __builtin_memcpy(m.allowed + (j + c) * kLanes + lane, &x[c], 8);
      }
  for (; j < m.keys; ++j)
    for (int l = 0; l < kLanes; ++l) {
      const std::uint8_t x = row[l][j * column];
      seen |= x;
      m.allowed[j * kLanes + l] = x;
    }
  return seen != 0;
}

TF_INLINE float element_as_float(const float* p, F32) { return *p; }
TF_INLINE float element_as_float(const double* p, F64) { return static_cast<float>(*p); }
TF_INLINE float element_as_float(const std::uint16_t* p, F16) { return f32_from_f16(*p); }
TF_INLINE float element_as_float(const std::uint16_t* p, BF16) { return f32_from_bf16(*p); }
TF_INLINE float element_as_float(const std::int8_t* p, I8) { return *p; }
TF_INLINE float element_as_float(const std::uint8_t* p, E4M3) { return f32_from_e4m3(*p); }
TF_INLINE float element_as_float(const std::uint8_t* p, E5M2) { return f32_from_e5m2(*p); }

// In log2 units. What is finite stays finite (the lowest float stands for "masked" in many models: a row of
// nothing else is the mean of V), so that only -inf excludes.
TF_INLINE F mask_to_log2(F x) {
  const F infinite = set(kInfinity), finite = min(set(3e38f), max(set(-3e38f), mul(x, set(kLog2E))));
  return select(equal(abs(x), infinite), x, finite);
}

template <class T>
TF_NOINLINE bool load_float_mask(const MaskBlock& m, std::int64_t column, bool same_rows) {
  const F excluded = set(-kInfinity);
  M none = equal(excluded, excluded);
  const auto* const* row = reinterpret_cast<const typename T::Element* const*>(m.row);
  constexpr bool kScalar = sizeof(typename T::Element) == 8;
  if (kScalar || same_rows || column != 1) {
    for (int j = 0; j < m.keys; ++j) {
      float* to = m.bias + j * kLanes;
      for (int l = 0; l < kLanes; ++l)
        to[l] = same_rows && l ? to[0] : element_as_float(row[l] + j * column, T{});
      for (int l = 0; l < kLanes; l += kVecLanes) {
        const F x = mask_to_log2(load(to + l));
        none = both(none, equal(x, excluded));
        store(to + l, x);
      }
    }
  } else if constexpr (!kScalar) {
    for (int lane = 0; lane < kLanes; lane += kVecLanes)
      for (int j = 0; j < m.keys; j += kVecLanes) {
        F block[kVecLanes];
        TF_UNROLL for (int l = 0; l < kVecLanes; ++l) {
          block[l] = mask_to_log2(load_up_to<T>(row[lane + l] + j, m.keys - j));
          none = both(none, equal(block[l], excluded));  // zeros behind the last key at worst keep the block
        }
        transpose(block);
        TF_UNROLL for (int c = 0; c < kVecLanes; ++c) store(m.bias + (j + c) * kLanes + lane, block[c]);
      }
  }
  return !all(none);
}

// Loads the block of keys [first_key, first_key + keys) unless it stands there already (the heads of a group
// often share their mask rows).
TF_NOINLINE void load_mask_block(const KernelArgs& a, const KernelSequence& s, std::int64_t kv_head,
                                 const LaneGroup& g, std::int64_t first_key, int keys, MaskBlock& m) {
  const std::int64_t sequence = &s - a.sequences;
  const std::int64_t size = static_cast<std::int64_t>(a.mask.element_size);
  const char* base = static_cast<const char*>(a.mask.data) + sequence * a.mask.batch * size;
  bool same_rows = true, same_block = m.first_key == first_key && m.keys == keys;
  const void* some = nullptr;
  for (int l = 0; l < kLanes; ++l) {
    const void* row = some;
    if (g.query[l] >= 0)
      row = base + ((kv_head * a.group + g.head[l]) * a.mask.head + g.query[l] * a.mask.row +
                    first_key * a.mask.column) *
                       size;
    if (!some) some = row;
    same_block = same_block && m.row[l] == row;
    same_rows = same_rows && row == some;
    m.row[l] = row;
  }
  if (same_block) return;
  m.first_key = first_key;
  m.keys = keys;
  const std::int64_t column = a.mask.column;
  switch (a.mask.dtype) {
    case DType::boolean: m.none = !load_bool_mask(m, column, same_rows); break;
    case DType::f32: m.none = !load_float_mask<F32>(m, column, same_rows); break;
    case DType::f64: m.none = !load_float_mask<F64>(m, column, same_rows); break;
    case DType::f16: m.none = !load_float_mask<F16>(m, column, same_rows); break;
    default: m.none = !load_float_mask<BF16>(m, column, same_rows); break;
  }
}

}  // namespace tileformer::TILEFORMER_UNIT
