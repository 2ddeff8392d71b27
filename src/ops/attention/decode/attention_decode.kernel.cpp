// Attention of few queries to many keys for one unit (decode): bound by reading K and V, so that every row is
// read once, where it lies, for all heads of its group.
//
//   for each split of kSplitKeys keys:
//     for each chunk of kChunkKeys keys, for each kv head:    the next chunk is prefetched meanwhile
//       S = Q K^T,  P = 2^(S - m),  O += P V
//     the split's O, m, l join those of the splits before, in order
//   out = O / l,  lse = log(l) + m
//
// The heads of a chunk follow each other, because they do so in a page: pages are read in address order.

#include "tile/unit.h"
//
#include "ops/attention/decode/chunk.h"
#include "ops/attention/decode/splits.h"
#include "ops/attention/finish_lanes.h"
#include "ops/attention/units.h"

namespace tileformer::TILEFORMER_UNIT {
namespace {

using attention::kSplitKeys;

TF_NOINLINE bool all_finite(const DecodeScratch& x, const RowState& s) {
  F bad = zero();
  for (std::int64_t i = 0; i < x.rows.count * x.o_stride; i += kVecLanes)
    bad = fma(load(s.o + i), zero(), bad);
  return all(equal(bad, bad));
}

// The keys of a split that some row sees, from a multiple of kRunRows on.
struct SplitKeys {
  std::int64_t begin, end;
};
SplitKeys keys_of(const Rows& rows, std::int64_t split) {
  const std::int64_t begin = max_of<std::int64_t>(rows.begin_min / kRunRows * kRunRows, split * kSplitKeys);
  return {begin, min_of<std::int64_t>(rows.end_max, (split + 1) * kSplitKeys)};
}

TF_INLINE Place place_at(const Decode& d, std::int64_t first, std::int64_t end) {
  Place p;
  p.chunk = chunk_at(first, end);
  locate(d.key_rows, p.chunk, p.key);
  locate(d.value_rows, p.chunk, p.value);
  return p;
}

// One split of all heads of the item, into their states. next: where the item goes on; begin >= end: nowhere.
TF_NOINLINE void attend_split(const Decode& d, const SplitKeys& keys, const SplitKeys& next) {
  for (std::int64_t h = 0; h < d.item.heads; ++h) clear_state(d.x, d.x.state(h));
  Place here = place_at(d, keys.begin, keys.end);
  for (std::int64_t first = keys.begin; first < keys.end; first += kChunkKeys) {
    const bool last = first + kChunkKeys >= keys.end;
    const std::int64_t next_first = last ? next.begin : first + kChunkKeys,
                       next_end = last ? next.end : keys.end;
    const bool goes_on = next_first < next_end;
    const Place after = goes_on ? place_at(d, next_first, next_end) : here;
    for (std::int64_t h = 0; h < d.item.heads; ++h) {
      const bool same_chunk = h + 1 < d.item.heads;
      attend_chunk(d, here, h,
                   same_chunk ? &here
                   : goes_on  ? &after
                              : nullptr,
                   same_chunk ? h + 1 : 0, false);
    }
    here = after;
  }
  for (std::int64_t h = 0; h < d.item.heads; ++h) {
    // Codes are finite: there only a row that sees what is not is NaN.
    if (d.value.whole || TF_LIKELY(all_finite(d.x, d.x.state(h)))) continue;
    clear_state(d.x, d.x.state(h));
    for (std::int64_t first = keys.begin; first < keys.end; first += kChunkKeys)
      attend_chunk(d, place_at(d, first, keys.end), h, nullptr, 0, true);
  }
}

// Sums over the lanes; what a row of a partial result holds behind O.
struct RowTotals {
  float m, sum, exact_sum;
};
RowTotals totals_of(const RowState& s, int row) {
  RowTotals t{s.m[row], 0, 0};
  for (int l = 0; l < kVecLanes; ++l) {
    t.sum += s.sum[row * kVecLanes + l];
    t.exact_sum += s.exact_sum[row * kVecLanes + l];
  }
  if (kElementsPerWord == 1) t.exact_sum = t.sum;
  return t;
}

// A row joins what was seen before it: [o_stride] O, then m, sum, exact sum (in the first lanes of a vector).
TF_NOINLINE void join_row(std::int64_t o_stride, const float* o, const RowTotals& t, float* before) {
  float* stats = before + o_stride;
  if (t.m == -kInfinity && t.sum == 0) return;
  const float m = t.m > stats[0] ? t.m : stats[0];
  alignas(64) float scale[kVecLanes] = {};
  const float base = m == -kInfinity ? 0 : m;
  scale[0] = (stats[0] == -kInfinity ? -200.0f : stats[0] - base);
  scale[1] = (t.m == -kInfinity ? 0.0f : t.m - base);
  store(scale, exp2_whole(load(scale)));
  const F old_scale = set(scale[0]), new_scale = set(scale[1]);
  for (std::int64_t d = 0; d < o_stride; d += kVecLanes)
    store(before + d, fma(old_scale, load(before + d), mul(new_scale, load(o + d))));
  stats[0] = m;
  stats[1] = scale[0] * stats[1] + scale[1] * t.sum;
  stats[2] = scale[0] * stats[2] + scale[1] * t.exact_sum;
}

TF_INLINE void clear_joined(std::int64_t o_stride, float* row) {
  for (std::int64_t d = 0; d < o_stride + kVecLanes; d += kVecLanes) store(row + d, zero());
  row[o_stride] = -kInfinity;
}

// Output and lse of one kv head from its joined rows.
template <class TQ>
TF_NOINLINE void finish_rows(const Decode& d, std::int64_t kv_head, const float* joined) {
  using E = typename TQ::Element;
  const KernelArgs& a = d.a;
  const std::int64_t row_floats = partial_row_floats(a), o_stride = d.x.o_stride;
  for (int first = 0; first < d.x.rows.count; first += kVecLanes) {
    alignas(64) float stats[3][kVecLanes], sink[kVecLanes], factor[kVecLanes], lse[kVecLanes];
    const int n = min_of(d.x.rows.count - first, kVecLanes);
    for (int l = 0; l < kVecLanes; ++l) {
      const int row = first + min_of(l, n - 1);
      for (int i = 0; i < 3; ++i) stats[i][l] = joined[row * row_floats + o_stride + i];
      if (stats[0][l] == -kInfinity) stats[0][l] = 0;
      sink[l] = a.sinks ? a.sinks[kv_head * a.group + row / d.s.queries] * kLog2E : -kInfinity;
    }
    F f;
    store(lse, finish_lanes(load(stats[1]), load(stats[2]), load(stats[0]), load(sink), set(1.0f), &f));
    store(factor, f);
    for (int l = 0; l < n; ++l) {
      const int row = first + l;
      const std::int64_t head = kv_head * a.group + row / d.s.queries,
                         query = d.s.first_query + row % d.s.queries;
      const float* o = joined + row * row_floats;
      E* out = static_cast<E*>(a.out.data) + d.s.batch * a.out.batch + head * a.out.head + query * a.out.row;
      for (std::int64_t c = 0; c < a.dim_v; c += kRowStep) {
        F x[2] = {mul(set(factor[l]), load(o + c)), mul(set(factor[l]), load(o + c + kVecLanes))};
        d.value.natural(x);
        for (int j = 0; j < 2; ++j) {
          const std::int64_t left = a.dim_v - c - j * kVecLanes;
          if (left >= kVecLanes)
            store_elements(out + c + j * kVecLanes, x[j], TQ{});
          else if (left > 0)
            store_some<TQ>(out + c + j * kVecLanes, x[j], static_cast<int>(left));
        }
      }
      if (a.lse.data)
        static_cast<float*>(a.lse.data)[d.s.batch * a.lse.batch + head * a.lse.head + query * a.lse.row] =
            lse[l];
    }
  }
}

TF_NOINLINE void finish_head(const Decode& d, std::int64_t kv_head, const float* joined) {
  if constexpr (kElementsPerWord == 1) {
    if (d.a.query.dtype == DType::f32) return finish_rows<F32>(d, kv_head, joined);
    if (d.a.query.dtype == DType::f16) return finish_rows<F16>(d, kv_head, joined);
  }
  finish_rows<BF16>(d, kv_head, joined);
}

// The last of the items that share a sequence joins its splits.
TF_NOINLINE void join_partials(const Decode& d) {
  const DecodeItem& item = d.item;
  const std::int64_t row_floats = partial_row_floats(d.a), split_floats = row_floats * d.a.decode_rows,
                     splits = item.end_split - item.begin_split;
  for (std::int64_t h = 0; h < item.heads; ++h) {
    float* joined = d.x.joined(h);
    for (int r = 0; r < d.x.rows.count; ++r) clear_joined(d.x.o_stride, joined + r * row_floats);
    for (std::int64_t i = 0; i < splits; ++i) {
      const float* partial = d.a.partials + (item.first_partial + h * splits + i) * split_floats;
      for (int r = 0; r < d.x.rows.count; ++r) {
        const float* row = partial + r * row_floats;
        const float* t = row + d.x.o_stride;
        join_row(d.x.o_stride, row, {t[0], t[1], t[2]}, joined + r * row_floats);
      }
    }
    finish_head(d, item.first_head + h, joined);
  }
}

TF_NOINLINE void run_item(const KernelArgs& a, const ScoreOptions& options, DecodeScratch& x,
                          const DecodeItem& item) {
  const KernelSequence& s = a.sequences[item.sequence];
  init_rows(a, s, x.rows);
  Decode d{a,
           options,
           s,
           item,
           x,
           key_type(a.key.dtype, a.query.dtype),
           value_type(a.value.dtype),
           rows_in_bytes(a, s, a.key, item.first_head),
           rows_in_bytes(a, s, a.value, item.first_head)};
  const std::int64_t row_floats = partial_row_floats(a), split_floats = row_floats * a.decode_rows,
                     splits = item.end_split - item.begin_split;
  const bool alone = item.counter < 0;
  for (std::int64_t h = 0; h < item.heads; ++h)
    for (int r = 0; r < x.rows.count; ++r) {
      const std::int64_t head = (item.first_head + h) * a.group + r / s.queries,
                         query = s.first_query + r % s.queries;
      const char* q =
          static_cast<const char*>(a.query.data) +
          (s.batch * a.query.batch + head * a.query.head + query * a.query.row) * a.query.element_size;
      const std::int64_t place = h * x.rows.count + r;
      x.query_scales[place] = d.key.pack_query(q, a.dim, query_factor(a), x.query + place * x.query_words);
      if (alone) clear_joined(x.o_stride, x.joined(h) + r * row_floats);
    }

  const std::int64_t end = item.first_split + item.splits;
  for (std::int64_t split = item.first_split; split < end; ++split) {
    const SplitKeys keys = keys_of(x.rows, split);
    SplitKeys next{0, 0};
    if (split + 1 < end) next = keys_of(x.rows, split + 1);
    if (keys.begin < keys.end)
      attend_split(d, keys, next);
    else
      for (std::int64_t h = 0; h < item.heads; ++h) clear_state(x, x.state(h));
    for (std::int64_t h = 0; h < item.heads; ++h) {
      const RowState state = x.state(h);
      for (int r = 0; r < x.rows.count; ++r) {
        const RowTotals t = totals_of(state, r);
        const float* o = state.o + r * x.o_stride;
        if (alone) {
          join_row(x.o_stride, o, t, x.joined(h) + r * row_floats);
          continue;
        }
        float* row = a.partials +
                     (item.first_partial + h * splits + split - item.begin_split) * split_floats +
                     r * row_floats;
        for (std::int64_t c = 0; c < x.o_stride; c += kVecLanes) store(row + c, load(o + c));
        row[x.o_stride] = t.m;
        row[x.o_stride + 1] = t.sum;
        row[x.o_stride + 2] = t.exact_sum;
      }
    }
  }
  if (alone) {
    for (std::int64_t h = 0; h < item.heads; ++h) finish_head(d, item.first_head + h, x.joined(h));
  } else if (__atomic_add_fetch(a.partials_done + item.counter, 1, __ATOMIC_ACQ_REL) == item.sharers) {
    join_partials(d);
  }
}

std::size_t scratch_bytes(const KernelArgs& a) { return DecodeScratch(a).bytes; }
std::int64_t row_floats(const KernelArgs& a) { return partial_row_floats(a); }

void run(const KernelArgs& a, int worker) {
  DecodeScratch scratch(a, a.scratch + a.scratch_bytes * worker);
  const ScoreOptions options = score_options(a);
  for (;;) {
    const std::int64_t i = __atomic_fetch_add(a.next_decode, 1, __ATOMIC_RELAXED);
    if (i >= a.decode_count) break;
    run_item(a, options, scratch, a.decode_items[i]);
  }
}

}  // namespace

extern const attention::DecodeKernel attention_decode_kernel;
const attention::DecodeKernel attention_decode_kernel = {row_floats, scratch_bytes, run};

}  // namespace tileformer::TILEFORMER_UNIT
