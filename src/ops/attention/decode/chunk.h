// One chunk of keys of one kv head: found, multiplied, with what comes next on its way. Included by kernels
// only.
#pragma once

#include "ops/attention/decode/row_softmax.h"
#include "ops/attention/decode/row_types.h"

namespace tileformer::TILEFORMER_UNIT {

using attention::DecodeItem;

// What stays the same for an item.
struct Decode {
  const KernelArgs& a;
  const ScoreOptions& options;
  const KernelSequence& s;
  const DecodeItem& item;
  DecodeScratch& x;
  KeyType key;
  ValueType value;
  KeyRows<const char> key_rows, value_rows;  // of the item's first kv head; strides in bytes
};

TF_INLINE KeyRows<const char> rows_in_bytes(const KernelArgs& a, const KernelSequence& s, const Operand& t,
                                            std::int64_t kv_head) {
  Operand bytes = t;
  bytes.batch *= t.element_size;
  bytes.head *= t.element_size;
  bytes.row *= t.element_size;
  return KeyRows<const char>(a, s, bytes, kv_head);
}

// Where every kRunRows rows of a chunk stand, of the item's first kv head.
struct ChunkRows {
  const char* at[kChunkRuns];
};

TF_NOINLINE void locate(const KeyRows<const char>& rows, const Chunk& chunk, ChunkRows& out) {
  for (int t = 0; t < kChunkRuns; ++t)
    out.at[t] = t * kRunRows < chunk.keys ? rows.at(chunk.first + t * kRunRows) : out.at[0];
}

// The chunks of an item one after the other, of K and of V.
struct Place {
  Chunk chunk;
  ChunkRows key, value;
};

TF_INLINE Chunk chunk_at(std::int64_t first, std::int64_t end) {
  const int keys = static_cast<int>(min_of<std::int64_t>(end - first, kChunkKeys));
  return {static_cast<int>(first), keys, static_cast<int>(round_up(keys, kRunRows))};
}

// What the scales of a chunk's rows belong to; `offset`: bytes to the kv head.
struct ScaledRows {
  const Operand &rows, &scale;
  const ChunkRows& at;
  std::int64_t offset, dim;
  float (*scale_of)(float scale, const void* row, std::int64_t dim);
};
// Zeros beyond the chunk's keys.
TF_NOINLINE void load_scales(const KernelArgs& a, const KernelSequence& s, const ScaledRows& x,
                             std::int64_t kv_head, const Chunk& chunk, float* out) {
  const KeyRows<const float> scales(a, s, x.scale, kv_head);
  const std::int64_t row_bytes = x.rows.row * x.rows.element_size;
  for (int t = 0; t * kRunRows < chunk.keys; ++t) {
    const float* scale = scales.at(chunk.first + t * kRunRows);
    const char* row = x.at.at[t] + x.offset;
    const int n = min_of(chunk.keys - t * kRunRows, kRunRows);
    for (int i = 0; i < n; ++i)
      out[t * kRunRows + i] = x.scale_of(scale[i * x.scale.row], row + i * row_bytes, x.dim);
    for (int i = n; i < kRunRows; ++i) out[t * kRunRows + i] = 0;
  }
}

// V with NaN or infinities: a key that a row does not see must not reach it as zero times NaN. Products are
// made with zeros in their place, in the same order as without them, so that rows which see none keep their
// bits; then what is not finite is added where it is seen. Plain, rare.
TF_COLD void hide_unseen(const DecodeScratch& x, const Chunk& chunk) {
  constexpr int kBytes = sizeof(Word) / kElementsPerWord;
  for (int r = 0; r < x.rows.count; ++r) {
    char* p = reinterpret_cast<char*>(x.probabilities + r * kChunkWords);
    for (int i = 0; i < chunk.padded; ++i) {
      const int key = chunk.first + i;
      if (key < x.rows.begin[r] || key >= x.rows.end[r]) __builtin_memset(p + i * kBytes, 0, kBytes);
    }
  }
}
TF_COLD void add_nonfinite(const Decode& d, const Chunk& chunk, std::int64_t head, const RowState& state) {
  int place[kRowStep];
  d.value.places(place);
  for (int i = 0; i < chunk.keys; ++i) {
    const int key = chunk.first + i;
    const char* row = d.value_rows.at(key) + head * d.a.value.head * d.a.value.element_size;
    for (std::int64_t c = 0; c < d.a.dim_v; ++c) {
      const float v = d.value.element(row, c);
      if (v - v == 0) continue;
      for (int r = 0; r < d.x.rows.count; ++r) {
        if (key < d.x.rows.begin[r] || key >= d.x.rows.end[r]) continue;
        const Word* p = d.x.probabilities + r * kChunkWords + i / kElementsPerWord;
        state.o[r * d.x.o_stride + c / kRowStep * kRowStep + place[c % kRowStep]] +=
            probability(p, i % kElementsPerWord) * v;
      }
    }
  }
}

// The rows of one kv head.
struct HeadRows {
  const ChunkRows* rows;
  std::int64_t offset;  // bytes, to the kv head
};

// Calls use(run, first) for runs that are as long as rows follow each other. `copy` takes rows that cannot be
// read in place: the last ones of a sequence, and those whose dim is not a multiple of kRowStep.
template <class Copy, class Use>
TF_INLINE void for_runs(const Operand& x, std::int64_t dim, const Chunk& chunk, const HeadRows& here,
                        const void* after, const HeadRows& ahead, char* buffer, Copy copy, Use use) {
  const std::int64_t run_bytes = kRunRows * x.row * x.element_size;
  for (int t = 0; t * kRunRows < chunk.keys;) {
    const char* at = here.rows->at[t] + here.offset;
    const int left = chunk.keys - t * kRunRows;
    int runs = 1;
    if (left < kRunRows || dim % kRowStep != 0) {
      copy(at, x.row, min_of(left, kRunRows), dim, buffer);
      use(Run{buffer, padded_dim(dim), kRunRows, buffer, buffer}, t * kRunRows);
    } else {
      while ((runs + 1) * kRunRows <= left && here.rows->at[t + runs] == here.rows->at[t] + runs * run_bytes)
        ++runs;
      const bool more = (t + runs) * kRunRows < chunk.keys;
      use(Run{at, x.row, runs * kRunRows, more ? here.rows->at[t + runs] + here.offset : after,
              ahead.rows ? ahead.rows->at[t] + ahead.offset : at},
          t * kRunRows);
    }
    t += runs;
  }
}

// ahead: what comes next, kv head `head_ahead` of the item; null: nothing.
TF_NOINLINE void attend_chunk(const Decode& d, const Place& here, std::int64_t head, const Place* ahead,
                              std::int64_t head_ahead, bool careful) {
  const KernelArgs& a = d.a;
  DecodeScratch& x = d.x;
  const Chunk& chunk = here.chunk;
  const RowState state = x.state(head);
  const std::int64_t key_head = a.key.head * a.key.element_size,
                     value_head = a.value.head * a.value.element_size;
  const std::int64_t kv_head = d.item.first_head + head;
  if (a.key_scale.data)
    load_scales(a, d.s, {a.key, a.key_scale, here.key, head * key_head, a.dim, d.key.scale}, kv_head, chunk,
                x.key_scales);
  // With care every element is looked at: a NaN is then that of its column alone.
  if (a.value_scale.data)
    load_scales(a, d.s,
                {a.value, a.value_scale, here.value, head * value_head, careful ? 0 : a.dim_v, d.value.scale},
                kv_head, chunk, x.weights);
  if (d.options.alibi)
    for (int r = 0; r < x.rows.count; ++r)
      x.slopes[r] = kLog2E * static_cast<const float*>(
                                 a.slopes.data)[d.item.sequence * a.slopes.batch +
                                                (kv_head * a.group + r / d.s.queries) * a.slopes.head];

  const HeadRows keys{&here.key, head * key_head}, values{&here.value, head * value_head};
  const HeadRows keys_ahead{ahead ? &ahead->key : nullptr, head_ahead * key_head},
      values_ahead{ahead ? &ahead->value : nullptr, head_ahead * value_head};
  const char *first_value = here.value.at[0] + values.offset,
             *next_key = ahead ? ahead->key.at[0] + keys_ahead.offset : first_value;
  const Word* query = x.query + head * x.rows.count * x.query_words;
  for_runs(a.key, a.dim, chunk, keys, first_value, keys_ahead, x.key_run, d.key.copy,
           [&](const Run& run, int first) { d.key.scores(run, x, query, x.scores + first); });
  row_probabilities(a, d.options, x, d.s, chunk, x.query_scales + head * x.rows.count, d.value.whole, state);
  if (TF_UNLIKELY(careful)) {
    hide_unseen(x, chunk);
    for (int t = 0; t * kRunRows < chunk.keys; ++t) {
      d.value.copy(here.value.at[t] + values.offset, a.value.row, min_of(chunk.keys - t * kRunRows, kRunRows),
                   a.dim_v, x.value_run);
      d.value.make_finite(x.value_run, kRunRows * padded_dim(a.dim_v));
      d.value.outputs(Run{x.value_run, padded_dim(a.dim_v), kRunRows, x.value_run, x.value_run}, x,
                      t * kRunRows, state.o);
    }
    return add_nonfinite(d, chunk, head, state);
  }
  for_runs(a.value, a.dim_v, chunk, values, next_key, values_ahead, x.value_run, d.value.copy,
           [&](const Run& run, int first) { d.value.outputs(run, x, first, state.o); });
}

}  // namespace tileformer::TILEFORMER_UNIT
