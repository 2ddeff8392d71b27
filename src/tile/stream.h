// Copies that leave the caches alone: for much that is written now and read much later. A line that is
// written whole need not be read first, which spares a third of the traffic of a copy.
#pragma once

#include "tile/config.h"

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace tileformer::TILEFORMER_UNIT {

TF_INLINE void stream_copy(void* to, const void* from, std::size_t bytes) {
#if defined(__SSE2__)
  if (TF_LIKELY(reinterpret_cast<std::uintptr_t>(to) % 16 == 0 && bytes % 16 == 0)) {
    auto* const t = static_cast<__m128i*>(to);
    const auto* const f = static_cast<const __m128i*>(from);
    const std::size_t n = bytes / 16;
    std::size_t i = 0;
    for (; i + 4 <= n; i += 4)
      TF_UNROLL for (int j = 0; j < 4; ++j) _mm_stream_si128(t + i + j, _mm_loadu_si128(f + i + j));
    for (; i < n; ++i) _mm_stream_si128(t + i, _mm_loadu_si128(f + i));
    return;
  }
#endif
  __builtin_memcpy(to, from, bytes);
}

// What was streamed is seen by other threads no later than what is written from here on.
TF_INLINE void stream_end() {
#if defined(__SSE2__)
  _mm_sfence();
#endif
}

}  // namespace tileformer::TILEFORMER_UNIT
