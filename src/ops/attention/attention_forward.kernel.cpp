// FlashAttention forward for one unit (Dao 2023, in the transposed form): vector lanes are queries.
//
//   for each block of keys:                       K, V packed once, shared by all queries of the task
//     for each group of kLanes queries:
//       for each tile of kKeyRows keys:           S^T = K Q^T, while the tile before becomes P = 2^(S - m)
//       O^T += V^T P^T
//   out = O / l,  lse = log(l) + m
//
// Blocks of keys start at multiples of key_block and a lane's arithmetic depends on nothing but its own row,
// hence the same bits whatever else is computed beside it.

#include "tile/unit.h"
//
#include "tile/pack.h"
//
#include "ops/attention/dropout.h"
#include "ops/attention/finish_lanes.h"
#include "ops/attention/key_runs.h"
#include "ops/attention/softmax.h"
#include "ops/attention/units.h"

namespace tileformer::TILEFORMER_UNIT {
namespace {

// Where a worker's buffers stand in its scratch.
struct Scratch {
  LaneGroup* groups;
  Word *query, *key, *value, *p;
  float *scores, *o;
  MaskBlock mask;
  std::int64_t query_words_per_group, o_floats_per_group;
  std::size_t bytes;

  explicit Scratch(const KernelArgs& a, char* base = nullptr) {
    std::size_t at = 0;
    // Buffers start 64 bytes off a multiple of 4096 from one another where their sizes are multiples of it.
    auto take = [&](std::size_t size) {
      char* p = base + at;
      at += (size + 63) / 64 * 64 + 64;
      return p;
    };
    const std::int64_t block = a.key_block;
    query_words_per_group = query_words(a.dim);
    o_floats_per_group = output_rows(a.dim_v) * kLanes;
    groups = reinterpret_cast<LaneGroup*>(take(sizeof(LaneGroup) * a.max_groups));
    query = reinterpret_cast<Word*>(take(sizeof(Word) * query_words_per_group * a.max_groups));
    o = reinterpret_cast<float*>(take(sizeof(float) * o_floats_per_group * a.max_groups));
    key = reinterpret_cast<Word*>(take(sizeof(Word) * key_stride(a.dim) * block));
    value = reinterpret_cast<Word*>(take(sizeof(Word) * value_words(a.dim_v, block)));
    p = reinterpret_cast<Word*>(take(sizeof(Word) * block / kElementsPerWord * kLanes));
    scores = reinterpret_cast<float*>(take(kScoresInPlace ? 0 : sizeof(float) * 2 * kKeyRows * kLanes));
    mask.bias =
        reinterpret_cast<float*>(take(a.mask.data ? sizeof(float) * (block + kVecLanes) * kLanes : 0));
    mask.allowed = reinterpret_cast<std::uint8_t*>(take(a.mask.data ? (block + 8) * kLanes : 0));
    bytes = (at + 4095) / 4096 * 4096;
  }

  TF_MEMBER float* score_tile_at(int row) const {
    if constexpr (kScoresInPlace)
      return reinterpret_cast<float*>(p) + row * kLanes;
    else
      return scores + (row / kKeyRows & 1) * kKeyRows * kLanes;
  }
  TF_MEMBER Word* p_at(int row) const { return p + row / kElementsPerWord * kLanes; }
};

// lse wants the sum of probabilities before they were rounded to 16 bits.
TF_INLINE bool keeps_exact_sum(const KernelArgs& a) { return kElementsPerWord != 1 && a.lse.data; }

// P of rows [begin, end) of the key block for one group; multiples of kKeyRows.
template <bool kExactSum>
TF_NOINLINE void probabilities(const KernelArgs& a, const Scratch& scratch, const ScoreOptions& options,
                               LaneGroup& g, const Word* q, float* o, int first_key, int begin, int end) {
  const int steps = steps_of(a.dim);
  const std::int64_t stride = key_stride(a.dim);
  const float score_scale = options.modified ? 1 : options.to_log2;
  const F score_scales = set(score_scale);
  Exponentiate<kExactSum> previous{
      scratch.score_tile_at(begin), scratch.p_at(begin), &g, score_scales, {}, {}};
  for (int row = begin; row < end; row += kKeyRows) {
    float* s = scratch.score_tile_at(row);
    const Word* k = scratch.key + row * stride;
    TileMax largest = row == begin ? score_tile(k, stride, q, steps, s, NoCompanion{})
                                   : score_tile(k, stride, q, steps, s, previous);
    const int key = first_key + row;
    if (TF_UNLIKELY(options.modified || key < g.begin_max || key + kKeyRows > g.end_min))
      largest = adjust_tile(options, g, scratch.mask, s, key, row);
    if (TF_UNLIKELY(exceeds(largest, g)))
      raise_max(largest, score_scale, g, scratch.p_at(begin), (row - begin) / kElementsPerWord, o,
                output_rows(a.dim_v));
    previous.scores = s;
    previous.p = scratch.p_at(row);
  }
  previous.begin();
  TF_UNROLL for (int c = 0; c < Exponentiate<kExactSum>::kSlices; ++c) previous.slice(c);
  previous.end();
  for (int lane = 0; lane < kLanes; lane += kVecLanes) {
    store(g.sum + lane, add(load(g.sum + lane), load(g.block_sum + lane)));
    store(g.exact_sum + lane, add(load(g.exact_sum + lane), load(g.exact_block_sum + lane)));
    store(g.block_sum + lane, zero());
    store(g.exact_block_sum + lane, zero());
  }
}

// Output rows and lse of a group.
template <class T>
TF_NOINLINE void finish(const KernelArgs& a, const KernelSequence& s, std::int64_t kv_head, LaneGroup& g,
                        const float* o) {
  using E = typename T::Element;
  alignas(64) float factor[kLanes], lse[kLanes], sink[kLanes];
  for (int l = 0; l < kLanes; ++l)
    sink[l] = a.sinks ? a.sinks[kv_head * a.group + g.head[l]] * kLog2E : -kInfinity;
  for (int lane = 0; lane < kLanes; lane += kVecLanes) {
    const F sum = load(g.sum + lane), exact = keeps_exact_sum(a) ? load(g.exact_sum + lane) : sum;
    F f;
    store(lse + lane, finish_lanes(sum, exact, sub(zero(), load(g.neg_max + lane)), load(sink + lane),
                                   set(a.dropout_scale), &f));
    store(factor + lane, f);
  }
  E* row[kLanes];
  for (int l = 0; l < kLanes; ++l) {
    row[l] = nullptr;
    if (g.query[l] < 0) continue;
    const std::int64_t head = kv_head * a.group + g.head[l], query = s.first_query + g.query[l];
    row[l] = static_cast<E*>(a.out.data) + s.batch * a.out.batch + head * a.out.head + query * a.out.row;
    if (a.lse.data)
      static_cast<float*>(a.lse.data)[s.batch * a.lse.batch + head * a.lse.head + query * a.lse.row] = lse[l];
  }
  write_lanes<T>(o, a.dim_v, factor, row);
}

// What holds for every task of a call.
struct Call {
  const KernelArgs& a;
  ScoreOptions options;
  SpanPackers pack;
};

template <class T>
TF_NOINLINE void run_task(const Call& call, Scratch& scratch, const Task& task, std::int64_t kv_head) {
  using E = typename T::Element;
  const KernelArgs& a = call.a;
  const ScoreOptions& options = call.options;
  const KernelSequence& s = a.sequences[task.sequence];
  std::int64_t first_key = s.keys, end_key = 0;
  for (std::int64_t i = 0; i < task.groups; ++i) {
    LaneGroup& g = scratch.groups[i];
    init_group(a, s, kv_head, task.first_group + i, g);
    if (g.begin_min < g.end_max) {
      first_key = min_of<std::int64_t>(first_key, g.begin_min);
      end_key = max_of<std::int64_t>(end_key, g.end_max);
    }
    const E* row[kLanes];
    for (int l = 0; l < kLanes; ++l)
      row[l] = g.query[l] < 0 ? nullptr
                              : static_cast<const E*>(a.query.data) + s.batch * a.query.batch +
                                    (kv_head * a.group + g.head[l]) * a.query.head +
                                    (s.first_query + g.query[l]) * a.query.row;
    pack_lanes<T>(row, a.dim, query_factor(a), scratch.query + i * scratch.query_words_per_group);
  }

  scratch.mask.first_key = -1;
  // ALiBi scores rise towards the diagonal: from there backwards the maximum stands at once, forwards it
  // would have to be raised all the way.
  const bool backwards = a.slopes.data != nullptr;
  const std::int64_t first_block = first_key / a.key_block,
                     blocks = ceil_div(end_key, a.key_block) - first_block;
  for (std::int64_t b = 0; b < blocks; ++b) {
    const std::int64_t k0 = (first_block + (backwards ? blocks - 1 - b : b)) * a.key_block;
    const int n = static_cast<int>(min_of<std::int64_t>(a.key_block, end_key - k0));
    const int padded = static_cast<int>(round_up(n, kKeyRows));
    const int first = static_cast<int>(k0);
    const KeySpan span{a, s, kv_head, first, n, padded};
    call.pack.keys(span, scratch.key);
    const bool finite = call.pack.values(span, scratch.value);
    for (std::int64_t i = 0; i < task.groups; ++i) {
      LaneGroup& g = scratch.groups[i];
      if (g.end_max <= first || g.begin_min >= first + n) continue;
      const int begin = max_of(g.begin_min - first, 0) / kKeyRows * kKeyRows;
      const int end = static_cast<int>(round_up(min_of(g.end_max - first, n), kKeyRows));
      if (a.mask.data) {
        load_mask_block(a, s, kv_head, g, first, n, scratch.mask);
        if (scratch.mask.none) continue;
      }
      float* o = scratch.o + i * scratch.o_floats_per_group;
      const Word* q = scratch.query + i * scratch.query_words_per_group;
      if (keeps_exact_sum(a))
        probabilities<kElementsPerWord != 1>(a, scratch, options, g, q, o, first, begin, end);
      else
        probabilities<false>(a, scratch, options, g, q, o, first, begin, end);
      if (TF_UNLIKELY(a.dropout_threshold))
        drop_block(a, task.sequence, kv_head, g, first, begin, end, scratch.p);
      outputs(scratch.value, a.dim_v, a.key_block, scratch.p, begin, end, o, !g.started);
      g.started = true;
      if (TF_UNLIKELY(!finite))
        call.pack.add_nonfinite(span, g, scratch.mask, {first, begin, min_of(end, n)}, scratch.p, o);
    }
  }
  for (std::int64_t i = 0; i < task.groups; ++i)
    finish<T>(a, s, kv_head, scratch.groups[i], scratch.o + i * scratch.o_floats_per_group);
}

std::size_t scratch_bytes(const KernelArgs& a) { return Scratch(a).bytes; }

void run(const KernelArgs& a, int worker) {
  Scratch scratch(a, a.scratch + a.scratch_bytes * worker);
  const Call call{a, score_options(a), span_packers(a)};
  enter_unit();
  for (;;) {
    const std::int64_t item = __atomic_fetch_add(a.next_item, 1, __ATOMIC_RELAXED);
    if (item >= a.tasks_count * a.kv_heads) break;
    const Task& task = a.tasks[item / a.kv_heads];
    const std::int64_t kv_head = item % a.kv_heads;
    if constexpr (kElementsPerWord == 1) {
      if (a.query.dtype == DType::f32)
        run_task<F32>(call, scratch, task, kv_head);
      else if (a.query.dtype == DType::f16)
        run_task<F16>(call, scratch, task, kv_head);
      else
        run_task<BF16>(call, scratch, task, kv_head);
    } else {
      run_task<BF16>(call, scratch, task, kv_head);
    }
  }
  leave_unit();
}

}  // namespace

extern const attention::Unit attention_unit;
const attention::Unit attention_unit = {
    TF_STRINGIZE(TILEFORMER_UNIT), kUnitName,     kLanes, kKeyRows, kKeyBlock,
    kElementsPerWord > 1,          scratch_bytes, run};

}  // namespace tileformer::TILEFORMER_UNIT
