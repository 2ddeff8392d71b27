// Rows into pages. A few tokens at a time, head by head: their rows lie next to each other in a page, so that
// memory is written in runs. Rows of the same dtype are copied; all others pass through fp32 in L1, where
// they are rotated.
#include "tile/unit.h"
//
#include "ops/kv_cache/kernel_args.h"
#include "ops/kv_cache/limits.h"
#include "tile/codes.h"
#include "tile/stream.h"

namespace tileformer::TILEFORMER_UNIT {
namespace {

using kv_cache::KernelArgs;
using kv_cache::RotaryRows;
using kv_cache::Rows;

constexpr int kTokens = 8;            // of a block
constexpr int kStep = 4 * kVecLanes;  // elements of a row that are quantised together
constexpr int kRow = int(round_up(kv_cache::kMaxHeadDim, 64));
constexpr int kHalf = int(round_up(kv_cache::kMaxHeadDim / 2, 16));
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

// Writes codes up to the end of the last step.
template <class T>
TF_INLINE void store_quantised(float* x, std::int64_t n, std::uint8_t* to, float* scale) {
  const std::int64_t padded = round_up(n, kStep);
  for (std::int64_t i = n; i < padded; ++i) x[i] = 0;
  F largest[4], poison[4];
  TF_UNROLL for (int j = 0; j < 4; ++j) largest[j] = poison[j] = zero();
  for (std::int64_t i = 0; i < padded; i += kStep) {
    TF_UNROLL for (int j = 0; j < 4; ++j) {
      const F v = load_unaligned(x + i + j * kVecLanes);
      largest[j] = max(abs(v), largest[j]);
      poison[j] = fma(v, zero(), poison[j]);  // NaN and Inf make it NaN
    }
  }
  alignas(64) float lanes[kVecLanes];
  store(lanes, max(max(largest[0], largest[1]), max(largest[2], largest[3])));
  TF_UNROLL for (int half = kVecLanes / 2; half > 0; half /= 2) TF_UNROLL for (int l = 0; l < half; ++l)
      lanes[l] = max_of(lanes[l], lanes[l + half]);
  const float m = lanes[0];
  const F faults = add(add(poison[0], poison[1]), add(poison[2], poison[3]));
  const bool sound = all(equal(faults, faults));
  if (TF_UNLIKELY(!sound || m < kSmallestRow)) {
    __builtin_memset(to, 0, static_cast<std::size_t>(n));
    *scale = sound ? 0.0f : __builtin_nanf("");
    return;
  }
  *scale = m / kLargestCode<T>;
  const F factor = set(kLargestCode<T> / m);
  for (std::int64_t i = 0; i < padded; i += kStep) store_codes<T>(to + i, x + i, factor);
}

// `to` has room for whole steps.
TF_NOINLINE void store_row(DType dtype, float* x, std::int64_t n, void* to, float* scale) {
  auto* const codes = static_cast<std::uint8_t*>(to);
  switch (dtype) {
    case DType::f32: return store_row<F32>(x, n, to);
    case DType::f16: return store_row<F16>(x, n, to);
    case DType::bf16: return store_row<BF16>(x, n, to);
    case DType::i8: return store_quantised<I8>(x, n, codes, scale);
    case DType::f8_e4m3: return store_quantised<E4M3>(x, n, codes, scale);
    case DType::f8_e5m2: return store_quantised<E5M2>(x, n, codes, scale);
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

TF_INLINE void copy_row(void* to, const void* from, std::int64_t bytes, bool stream) {
  if (stream)
    stream_copy(to, from, static_cast<std::size_t>(bytes));
  else
    __builtin_memcpy(to, from, static_cast<std::size_t>(bytes));
}

TF_NOINLINE void copy_rows(const Rows& r, const Block& b, std::int64_t heads, bool stream) {
  const std::int64_t bytes = r.dim * std::int64_t(size_of(r.from_dtype));
  for (int t = 0; t < b.tokens; ++t)
    for (std::int64_t h = 0; h < heads; ++h)
      if (b.page[t] >= 0) copy_row(row_to(r, b, t, h), row_from(r, b.first + t, h), bytes, stream);
}

TF_NOINLINE void convert_rows(const Rows& r, const Block& b, std::int64_t heads, const RotaryRows* rotary,
                              bool stream) {
  alignas(64) float x[kRow], stored[kRow];
  const std::int64_t bytes = r.dim * std::int64_t(size_of(r.to_dtype));
  const bool direct = !stream && !r.scale;
  for (int t = 0; t < b.tokens; ++t) {
    if (b.page[t] < 0) continue;
    for (std::int64_t h = 0; h < heads; ++h) {
      load_row(r.from_dtype, row_from(r, b.first + t, h), r.dim, x);
      if (rotary) {
        if (rotary->interleaved)
          rotate_neighbours(x, b.cos[t], b.sin[t], rotary->half);
        else
          rotate_halves(x, b.cos[t], b.sin[t], rotary->half);
      }
      float* const scale =
          r.scale ? r.scale + b.page[t] * r.scale_page + h * r.scale_head + b.row[t] * r.scale_row : nullptr;
      char* const to = row_to(r, b, t, h);
      store_row(r.to_dtype, x, r.dim, direct ? to : static_cast<void*>(stored), scale);
      if (!direct) copy_row(to, stored, bytes, stream);
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
      copy_rows(r, b, a.heads, a.stream);
    else
      convert_rows(r, b, a.heads, rotary, a.stream);
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
  if (a.stream) stream_end();
}

}  // namespace

extern const kv_cache::Unit kv_append_unit;
const kv_cache::Unit kv_append_unit = {TF_STRINGIZE(TILEFORMER_UNIT), run};

}  // namespace tileformer::TILEFORMER_UNIT
