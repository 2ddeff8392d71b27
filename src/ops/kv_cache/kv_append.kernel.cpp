// Rows into pages. A few tokens at a time, head by head: their rows lie next to each other in a page, so that
// memory is written in runs. Rows of the same dtype are copied; all others pass through fp32 in L1, where
// they are rotated.
#include "tile/unit.h"
//
#include "ops/kv_cache/kernel_args.h"
#include "ops/kv_cache/limits.h"
#include "tile/codes.h"

namespace tileformer::TILEFORMER_UNIT {
namespace {

using kv_cache::KernelArgs;
using kv_cache::RotaryRows;
using kv_cache::Rows;

constexpr int kTokens = 8;                             // of a block; their rows are 18 KiB of L1 at most
constexpr int kRow = int(kv_cache::kMaxHeadDim) + 16;  // and a vector to run over
constexpr int kHalf = int(kv_cache::kMaxHeadDim) / 2 + 16;
constexpr float kSmallestRow = 0x1p-100f;  // below, 1 / scale might not be finite

struct Block {
  std::int64_t first;  // token
  int tokens;
  std::int64_t page[kTokens], row[kTokens];  // page < 0: skip
  const float* cos[kTokens];
  const float* sin[kTokens];
};

template <class T>
TF_INLINE void load_row(const void* from, std::int64_t n, float* x) {
  const auto* p = static_cast<const typename T::Element*>(from);
  std::int64_t i = 0;
  for (; i + kVecLanes <= n; i += kVecLanes) store_unaligned(x + i, load_elements(p + i, T{}));
  if (i < n) store_unaligned(x + i, load_some<T>(p + i, static_cast<int>(n - i)));
}

TF_NOINLINE void load_row(DType dtype, const void* from, std::int64_t n, float* x) {
  if (dtype == DType::f32)
    load_row<F32>(from, n, x);
  else if (dtype == DType::f16)
    load_row<F16>(from, n, x);
  else
    load_row<BF16>(from, n, x);
}

TF_NOINLINE void rotate_halves(float* __restrict x, const float* __restrict cos, const float* __restrict sin,
                               std::int64_t half) {
  std::int64_t i = 0;
  for (; i + kVecLanes <= half; i += kVecLanes) {
    const F a = load_unaligned(x + i), b = load_unaligned(x + half + i);
    const F c = load_unaligned(cos + i), s = load_unaligned(sin + i);
    store_unaligned(x + i, sub(mul(a, c), mul(b, s)));
    store_unaligned(x + half + i, add(mul(b, c), mul(a, s)));
  }
  for (; i < half; ++i) {
    const float a = x[i], b = x[half + i];
    x[i] = a * cos[i] - b * sin[i];
    x[half + i] = b * cos[i] + a * sin[i];
  }
}

TF_NOINLINE void rotate_neighbours(float* __restrict x, const float* __restrict cos,
                                   const float* __restrict sin, std::int64_t half) {
  for (std::int64_t i = 0; i < half; ++i) {
    const float a = x[2 * i], b = x[2 * i + 1];
    x[2 * i] = a * cos[i] - b * sin[i];
    x[2 * i + 1] = b * cos[i] + a * sin[i];
  }
}

template <class T>
TF_INLINE void store_row(const float* x, std::int64_t n, void* to) {
  auto* p = static_cast<typename T::Element*>(to);
  std::int64_t i = 0;
  for (; i + kVecLanes <= n; i += kVecLanes) store_elements(p + i, load_unaligned(x + i), T{});
  if (i < n) store_some<T>(p + i, load_unaligned(x + i), static_cast<int>(n - i));
}

// x is zero from n to the end of its last vector.
template <class T>
TF_INLINE void store_quantised(const float* x, std::int64_t n, void* to, float* scale) {
  using Code = typename T::Element;
  F largest = zero(), poison = zero();
  for (std::int64_t i = 0; i < n; i += kVecLanes) {
    const F v = load_unaligned(x + i);
    largest = max(abs(v), largest);
    poison = fma(v, zero(), poison);  // NaN and Inf make it NaN
  }
  alignas(64) float lanes[kVecLanes];
  store(lanes, largest);
  float m = lanes[0];
  TF_UNROLL for (int l = 1; l < kVecLanes; ++l) m = max_of(m, lanes[l]);

  Code* const p = static_cast<Code*>(to);
  const bool sound = all(equal(poison, poison));
  if (TF_UNLIKELY(!sound || m < kSmallestRow)) {
    __builtin_memset(p, 0, static_cast<std::size_t>(n));
    *scale = sound ? 0.0f : __builtin_nanf("");
    return;
  }
  *scale = m / kLargestCode<T>;
  const F factor = set(kLargestCode<T> / m);
  std::int64_t i = 0;
  for (; i + kVecLanes <= n; i += kVecLanes)
    store_codes(p + i, rounded(mul(load_unaligned(x + i), factor)), T{});
  if (i < n) {
    Code codes[kVecLanes];
    store_codes(codes, rounded(mul(load_unaligned(x + i), factor)), T{});
    copy_some<kVecLanes>(p + i, codes, static_cast<int>(n - i));
  }
}

TF_NOINLINE void store_row(DType dtype, const float* x, std::int64_t n, void* to, float* scale) {
  switch (dtype) {
    case DType::f32: return store_row<F32>(x, n, to);
    case DType::f16: return store_row<F16>(x, n, to);
    case DType::bf16: return store_row<BF16>(x, n, to);
    case DType::i8: return store_quantised<I8>(x, n, to, scale);
    case DType::f8_e4m3: return store_quantised<E4M3>(x, n, to, scale);
    case DType::f8_e5m2: return store_quantised<E5M2>(x, n, to, scale);
    default: return;
  }
}

TF_INLINE const char* row_from(const Rows& r, std::int64_t token, std::int64_t head) {
  return static_cast<const char*>(r.from) +
         (token * r.from_token + head * r.from_head) * std::int64_t(size_of(r.from_dtype));
}
TF_INLINE char* row_to(const Rows& r, const Block& b, int t, std::int64_t head) {
  return static_cast<char*>(r.to) +
         (b.page[t] * r.to_page + head * r.to_head + b.row[t] * r.to_row) * std::int64_t(size_of(r.to_dtype));
}

TF_NOINLINE void copy_rows(const Rows& r, const Block& b, std::int64_t heads) {
  const auto bytes = static_cast<std::size_t>(r.dim) * size_of(r.from_dtype);
  for (std::int64_t h = 0; h < heads; ++h)
    for (int t = 0; t < b.tokens; ++t)
      if (b.page[t] >= 0) __builtin_memcpy(row_to(r, b, t, h), row_from(r, b.first + t, h), bytes);
}

TF_NOINLINE void convert_rows(const Rows& r, const Block& b, std::int64_t heads, const RotaryRows* rotary) {
  float x[kRow];
  for (std::int64_t h = 0; h < heads; ++h) {
    for (int t = 0; t < b.tokens; ++t) {
      if (b.page[t] < 0) continue;
      load_row(r.from_dtype, row_from(r, b.first + t, h), r.dim, x);
      if (rotary) {
        if (rotary->interleaved)
          rotate_neighbours(x, b.cos[t], b.sin[t], rotary->half);
        else
          rotate_halves(x, b.cos[t], b.sin[t], rotary->half);
      }
      float* const scale =
          r.scale ? r.scale + b.page[t] * r.scale_page + h * r.scale_head + b.row[t] * r.scale_row : nullptr;
      store_row(r.to_dtype, x, r.dim, row_to(r, b, t, h), scale);
    }
  }
}

// cos and sin of the block's tokens as fp32: where they lie, or converted.
struct Angles {
  float cos[kTokens][kHalf], sin[kTokens][kHalf];
};
TF_INLINE void find_angles(const RotaryRows& r, Block& b, Angles& converted) {
  for (int t = 0; t < b.tokens; ++t) {
    const std::int64_t position = r.positions[(b.first + t) * r.positions_stride];
    const auto size = std::int64_t(size_of(r.dtype));
    const char* const cos = static_cast<const char*>(r.cos) + position * r.cos_row * size;
    const char* const sin = static_cast<const char*>(r.sin) + position * r.sin_row * size;
    if (r.dtype == DType::f32) {
      b.cos[t] = reinterpret_cast<const float*>(cos);
      b.sin[t] = reinterpret_cast<const float*>(sin);
      continue;
    }
    load_row(r.dtype, cos, r.half, converted.cos[t]);
    load_row(r.dtype, sin, r.half, converted.sin[t]);
    b.cos[t] = converted.cos[t];
    b.sin[t] = converted.sin[t];
  }
}

TF_NOINLINE void one_block(const KernelArgs& a, Block& b) {
  for (int t = 0; t < b.tokens; ++t) {
    const std::int64_t token = b.first + t, slot = a.slots ? a.slots[token * a.slots_stride] : token;
    b.page[t] = slot < 0 ? -1 : slot / a.page_size;
    b.row[t] = slot < 0 ? 0 : slot % a.page_size;
  }
  Angles converted;
  const bool rotates = a.rotary.cos != nullptr;
  if (rotates) find_angles(a.rotary, b, converted);
  for (int i = 0; i < a.tensors; ++i) {
    const Rows& r = a.rows[i];
    const RotaryRows* const rotary = i == 0 && rotates ? &a.rotary : nullptr;
    if (!rotary && r.from_dtype == r.to_dtype)
      copy_rows(r, b, a.heads);
    else
      convert_rows(r, b, a.heads, rotary);
  }
}

void run(const KernelArgs& a) {
  for (;;) {
    const std::int64_t begin = __atomic_fetch_add(a.next_token, a.tokens_per_item, __ATOMIC_RELAXED);
    if (begin >= a.tokens) break;
    const std::int64_t end = min_of(begin + a.tokens_per_item, a.tokens);
    Block block;
    for (block.first = begin; block.first < end; block.first += kTokens) {
      block.tokens = static_cast<int>(min_of<std::int64_t>(kTokens, end - block.first));
      one_block(a, block);
    }
  }
}

}  // namespace

extern const kv_cache::Unit kv_append_unit;
const kv_cache::Unit kv_append_unit = {TF_STRINGIZE(TILEFORMER_UNIT), run};

}  // namespace tileformer::TILEFORMER_UNIT
