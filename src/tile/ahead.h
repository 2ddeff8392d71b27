// Rows of memory that later work needs, asked for a few lines at a time between products: many prefetches at
// once would be dropped, and would hold up the loads that are needed now.
#pragma once

namespace tileformer::TILEFORMER_UNIT {

struct AheadRows {
  const char* at = nullptr;
  std::int64_t stride = 0;  // bytes from row to row
  int rows = 0;             // still to come
  int row_lines = 0, line = 0;

  // The next lines, into L2.
  TF_MEMBER void ask_for(int lines) {
    for (; lines > 0 && rows > 0; --lines) {
      prefetch_far(at + line * 64);
      if (++line == row_lines) {
        line = 0;
        at += stride;
        --rows;
      }
    }
  }
};

// One run of bytes.
TF_INLINE AheadRows ahead_bytes(const void* at, std::int64_t bytes) {
  AheadRows r;
  r.at = static_cast<const char*>(at);
  r.rows = at ? 1 : 0;
  r.row_lines = static_cast<int>(ceil_div(bytes, 64));
  return r;
}

}  // namespace tileformer::TILEFORMER_UNIT
