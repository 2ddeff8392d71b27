// What decode keeps for the rows of a group (its heads times the sequence's queries), and where in a worker's
// scratch. Included by kernels only.
#pragma once

#include "ops/attention/decode/row_products.h"
#include "ops/attention/visible_keys.h"

namespace tileformer::TILEFORMER_UNIT {

// Keys of which the scores stand in L1 at a time; the next ones are on their way into L2 meanwhile.
inline constexpr int kChunkKeys = 64;
inline constexpr int kChunkRuns = kChunkKeys / kRunRows;
inline constexpr int kChunkWords = kChunkKeys / kElementsPerWord;

TF_INLINE std::int64_t padded_dim(std::int64_t dim) { return round_up(dim, kRowStep); }
TF_INLINE std::int64_t query_row_words(std::int64_t dim) {
  return padded_dim(dim) / kRowStep * kKeyStepWords * kVecLanes;
}

// A partial result: of each row O in the order of value steps, then m, the sum and the exact sum.
TF_INLINE std::int64_t partial_row_floats(const KernelArgs& a) { return padded_dim(a.dim_v) + kVecLanes; }

// O, m and the sums of the rows of one kv head over some keys. Probabilities are 2^(score - m), m whole, so
// that every change of m is exact; -inf: nothing was seen yet.
struct RowState {
  float* o;          // [rows][o_stride]
  float* m;          // [rows, up to a multiple of kVecLanes]
  float* sum;        // [rows][kVecLanes]
  float* exact_sum;  // the same before probabilities were rounded; as sum where they are not
};

// The queries of a sequence and which keys they see; row = head of the group * queries + query.
struct Rows {
  int count;
  std::int32_t *begin, *end;  // visible keys of each row; none: 0, 0
  std::int32_t begin_min, begin_max, end_min, end_max;
};

struct DecodeScratch {
  Rows rows;
  Word* query;  // [heads][rows][query_words]
  std::int64_t query_words, o_stride;
  float* scores;              // [rows][kChunkKeys]
  Word* probabilities;        // [rows][kChunkWords]
  float* row_max;             // [rows][kVecLanes]
  float* slopes;              // ALiBi times log2(e) of each row of the head at hand
  float* weights;             // [kChunkKeys] scales of V's rows, or ones
  float* key_scales;          // [kChunkKeys]
  float* query_scales;        // [heads][rows]: what scores are to be multiplied by
  float* weight_scales;       // [rows]: of probabilities in whole numbers
  char *key_run, *value_run;  // kRunRows rows of 4-byte elements, where rows cannot be read in place
  std::int64_t rows_padded;
  char *states, *joins;
  std::int64_t state_bytes, join_bytes;
  std::size_t bytes;

  explicit DecodeScratch(const KernelArgs& a, char* base = nullptr) {
    std::size_t at = 0;
    // Buffers start 64 bytes off a multiple of 4096 from one another where their sizes are multiples of it.
    auto take = [&](std::int64_t size) {
      char* p = base + at;
      at += static_cast<std::size_t>(round_up(size, 64) + 64);
      return p;
    };
    const std::int64_t n = a.decode_rows;
    rows_padded = round_up(n, kVecLanes);
    query_words = query_row_words(a.dim);
    o_stride = padded_dim(a.dim_v);
    rows.begin = reinterpret_cast<std::int32_t*>(take(4 * rows_padded));
    rows.end = reinterpret_cast<std::int32_t*>(take(4 * rows_padded));
    query = reinterpret_cast<Word*>(take(sizeof(Word) * query_words * n * a.decode_heads));
    scores = reinterpret_cast<float*>(take(4 * n * kChunkKeys));
    probabilities = reinterpret_cast<Word*>(take(sizeof(Word) * n * kChunkWords));
    row_max = reinterpret_cast<float*>(take(4 * rows_padded * kVecLanes));
    slopes = reinterpret_cast<float*>(take(4 * rows_padded));
    weights = reinterpret_cast<float*>(take(4 * kChunkKeys));
    key_scales = reinterpret_cast<float*>(take(4 * kChunkKeys));
    query_scales = reinterpret_cast<float*>(take(4 * n * a.decode_heads));
    weight_scales = reinterpret_cast<float*>(take(4 * n));
    key_run = take(4 * kRunRows * padded_dim(a.dim));
    value_run = take(4 * kRunRows * padded_dim(a.dim_v));
    state_bytes = round_up(4 * (n * o_stride + rows_padded + 2 * n * kVecLanes), 64) + 64;
    states = take(state_bytes * a.decode_heads);
    join_bytes = round_up(4 * n * partial_row_floats(a), 64) + 64;
    joins = take(join_bytes * a.decode_heads);
    bytes = (at + 4095) / 4096 * 4096;
  }

  // kv head `head` of the item: the splits before, [rows][partial_row_floats], and the split at hand.
  TF_MEMBER float* joined(std::int64_t head) const {
    return reinterpret_cast<float*>(joins + head * join_bytes);
  }
  TF_MEMBER RowState state(std::int64_t head) const {
    float* at = reinterpret_cast<float*>(states + head * state_bytes);
    RowState s;
    s.o = at;
    s.m = s.o + rows.count * o_stride;
    s.sum = s.m + rows_padded;
    s.exact_sum = s.sum + rows.count * kVecLanes;
    return s;
  }
};

TF_INLINE void clear_state(const DecodeScratch& x, const RowState& s) {
  for (std::int64_t i = 0; i < x.rows.count * x.o_stride; i += kVecLanes) store(s.o + i, zero());
  for (std::int64_t i = 0; i < x.rows_padded; i += kVecLanes) store(s.m + i, set(-kInfinity));
  for (std::int64_t i = 0; i < x.rows.count * kVecLanes; i += kVecLanes) {
    store(s.sum + i, zero());
    store(s.exact_sum + i, zero());
  }
}

TF_NOINLINE void init_rows(const KernelArgs& a, const KernelSequence& s, Rows& r) {
  r.count = static_cast<int>(a.group * s.queries);
  r.begin_min = r.end_min = 0x7fffffff;
  r.begin_max = r.end_max = 0;
  for (int i = 0; i < r.count; ++i) {
    const std::int64_t query = i % s.queries;
    std::int64_t begin = first_visible(a, s, query), end = end_visible(a, s, query);
    if (begin >= end) begin = end = 0;
    r.begin[i] = static_cast<std::int32_t>(begin);
    r.end[i] = static_cast<std::int32_t>(end);
    r.begin_max = max_of(r.begin_max, r.begin[i]);
    r.end_min = min_of(r.end_min, r.end[i]);
    r.end_max = max_of(r.end_max, r.end[i]);
    // A row that sees nothing must not make others look at keys from 0 on.
    if (begin < end) r.begin_min = min_of(r.begin_min, r.begin[i]);
  }
}

}  // namespace tileformer::TILEFORMER_UNIT
