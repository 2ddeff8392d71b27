// FlashAttention backward for one unit, in the transposed form: lanes are queries, as in the forward.
//
//   a task: a chunk of queries of one kv head. Q, dO packed once; dQ in fp32 on the chip.
//   for each block of keys:                       K, V packed once, shared by all queries of the task
//     for each block of queries:
//       for each group of kLanes queries, for each tile of kKeyRows keys:
//         S^T  = K Q^T                            while dS of the tile before is made
//         dP^T = V dO^T                           while P = exp(S - lse) is made
//       dV += P^T dO,  dK += dS^T Q               sums over the queries of the block
//       for each group: dQ^T += K^T dS^T
//     dV, dK into memory, in the order of the tasks
//   dQ into memory
//
// S and dP are computed once, hence five products. Blocks start at multiples of key_block and chunks depend
// on their own sequence alone, hence the same bits whatever else is computed beside it.

#include "tile/unit.h"
//
#include "tile/pack.h"
//
#include "ops/attention/backward/far_rows.h"
#include "ops/attention/backward/mask_gradient.h"
#include "ops/attention/backward/nonfinite_products.h"
#include "ops/attention/backward/score_gradient.h"
#include "ops/attention/backward/turns.h"
#include "ops/attention/dropout.h"
#include "ops/attention/units.h"

namespace tileformer::TILEFORMER_UNIT {
namespace {

inline constexpr int kTilesOfBlock = kGradientKeyBlock / kKeyRows;
static_assert(kGradientKeyBlock % kKeyRows == 0 && kGradientGroups <= 255);

// For each tile of keys the groups of the query block that see it.
struct TileGroups {
  int count[kTilesOfBlock];
  std::uint8_t group[kTilesOfBlock][kGradientGroups];
};

// Where a worker's buffers stand in its scratch.
struct Scratch {
  GradientLanes* groups;
  Word *query_lanes, *grad_lanes;  // packed for S and dP: [group][dim / W][kLanes]
  Word *query_steps, *grad_steps;  // packed for dK and dV: [query block][slice][group][kLaneWords][kLanes]
  float* dq;                       // [group][dim][kLanes]
  Word *key, *value, *key_columns;
  float *dk, *dv;
  Word *p, *ds;     // [group of the query block][key_block][kLaneWords]
  Word* ds_packed;  // [key_block / W][kLanes]; where W is 1, ds serves
  float *scores, *dp, *cap_slope, *score_gradients;
  std::uint8_t* drop;
  MaskBlock mask;
  TileGroups tiles;
  std::int64_t finished = 0;  // tasks before this one are known to be done

  std::int64_t query_words_of_group, grad_words_of_group, dq_floats_of_group;
  std::int64_t steps_of_group;                             // words
  std::int64_t query_steps_of_block, grad_steps_of_block;  // words of a query block
  std::int64_t slice_words;
  std::int64_t rows_of_group;  // words of p and ds
  std::int64_t dk_stride, dv_stride;
  std::size_t bytes;

  explicit Scratch(const BackwardKernelArgs& b, char* base = nullptr) {
    const KernelArgs& a = b.forward;
    std::size_t at = 0;
    // Buffers start 64 bytes off a multiple of 4096 from one another where their sizes are multiples of it.
    auto take = [&](std::size_t size) {
      char* p = base + at;
      at += (size + 63) / 64 * 64 + 64;
      return p;
    };
    auto words = [&](std::int64_t n) { return reinterpret_cast<Word*>(take(sizeof(Word) * n)); };
    auto floats = [&](std::int64_t n) { return reinterpret_cast<float*>(take(sizeof(float) * n)); };
    const std::int64_t block = a.key_block, query_blocks = ceil_div(a.max_groups, b.block_groups);
    query_words_of_group = query_words(a.dim);
    grad_words_of_group = query_words(a.dim_v);
    dq_floats_of_group = output_rows(a.dim) * kLanes;
    steps_of_group = kLaneWords * kLanes;
    slice_words = steps_of_group * b.block_groups;
    query_steps_of_block = ceil_div(a.dim, kLanes) * slice_words;
    grad_steps_of_block = ceil_div(a.dim_v, kLanes) * slice_words;
    rows_of_group = block * kLaneWords + 16;
    dk_stride = lane_sum_stride(a.dim);
    dv_stride = lane_sum_stride(a.dim_v);

    groups = reinterpret_cast<GradientLanes*>(take(sizeof(GradientLanes) * a.max_groups));
    query_lanes = words(query_words_of_group * a.max_groups);
    grad_lanes = words(grad_words_of_group * a.max_groups);
    query_steps = words(query_steps_of_block * query_blocks);
    grad_steps = words(grad_steps_of_block * query_blocks);
    dq = floats(dq_floats_of_group * a.max_groups);
    key = words(key_stride(a.dim) * block);
    value = words(key_stride(a.dim_v) * block);
    key_columns = words(value_words(a.dim, block));
    dk = floats(dk_stride * block);
    dv = floats(dv_stride * block);
    p = words(rows_of_group * b.block_groups);
    ds = words(rows_of_group * b.block_groups);
    ds_packed = words(kElementsPerWord > 1 ? block / kElementsPerWord * kLanes : 0);
    scores = floats(kElementsPerWord > 1 ? 2 * kKeyRows * kLanes : 0);
    dp = floats(kElementsPerWord > 1 ? kKeyRows * kLanes : 0);
    cap_slope = floats(a.softcap > 0 ? kKeyRows * kLanes : 0);
    score_gradients = floats(b.grad_mask.data ? block * kLanes : 0);
    drop = reinterpret_cast<std::uint8_t*>(take(a.dropout_threshold ? (block + 8) * kLanes : 0));
    mask.bias = floats(a.mask.data ? (block + kVecLanes) * kLanes : 0);
    mask.allowed = reinterpret_cast<std::uint8_t*>(take(a.mask.data ? (block + 8) * kLanes : 0));
    bytes = (at + 4095) / 4096 * 4096;
  }

  TF_MEMBER float* score_tile_at(Word* rows, int row) const {
    if constexpr (kElementsPerWord == 1)
      return reinterpret_cast<float*>(rows) + row * kLanes;
    else
      return scores + (row / kKeyRows & 1) * kKeyRows * kLanes;
  }
  TF_MEMBER float* dp_tile_at(Word* rows, int row) const {
    if constexpr (kElementsPerWord == 1)
      return reinterpret_cast<float*>(rows) + row * kLanes;
    else
      return dp;
  }
};

// A kv head of a sequence, and a block of its keys.
struct KeyBlock {
  const KernelSequence* sequence;
  std::int64_t sequence_index, kv_head;
  std::int64_t index;
  int first, count;  // keys
  int seen;          // of them, those before the end of what the task's queries see; only they are read
  bool finite;
};

// P and dS of rows [begin, end) of the key block for group i of the task, g of the query block.
template <bool kGeneral>
TF_NOINLINE void score_gradients(const BackwardKernelArgs& b, const Scratch& x, const ScoreOptions& options,
                                 const GradientOptions& gradient, std::int64_t i, int g, int first_key,
                                 int begin, int end) {
  const KernelArgs& a = b.forward;
  const GradientLanes& lanes = x.groups[i];
  const Word *q = x.query_lanes + i * x.query_words_of_group,
             *grad = x.grad_lanes + i * x.grad_words_of_group;
  const int steps = steps_of(a.dim), steps_v = steps_of(a.dim_v);
  const std::int64_t stride = key_stride(a.dim), stride_v = key_stride(a.dim_v);
  Word *p_rows = x.p + g * x.rows_of_group, *ds_rows = x.ds + g * x.rows_of_group;
  const F score_scales = set(options.modified ? 1 : options.to_log2);
  ScoreGradient<kGeneral> previous{};
  previous.group = &lanes;
  previous.options = &gradient;
  for (int row = begin; row < end; row += kKeyRows) {
    float *s = x.score_tile_at(p_rows, row), *dp = x.dp_tile_at(ds_rows, row);
    if (row == begin)
      score_tile(x.key + row * stride, stride, q, steps, s, NoCompanion{});
    else
      score_tile(x.key + row * stride, stride, q, steps, s, previous);
    const int key = first_key + row;
    if (TF_UNLIKELY(options.modified || key < lanes.begin_max || key + kKeyRows > lanes.end_min))
      adjust_tile(options, lanes, x.mask, s, key, row,
                  kGeneral && gradient.cap_slope ? x.cap_slope : nullptr);
    const Probabilities<kGeneral> probabilities{s, p_rows + row * kLaneWords, &lanes, score_scales};
    score_tile(x.value + row * stride_v, stride_v, grad, steps_v, dp, probabilities);
    previous.p = s;
    previous.dp = dp;
    previous.rows = ds_rows + row * kLaneWords;
    previous.packed = x.ds_packed + row / kElementsPerWord * kLanes;
    previous.row = row;
  }
  TF_UNROLL for (int c = 0; c < ScoreGradient<kGeneral>::kSlices; ++c) previous.slice(c);
}

// Zeros in the rows of P where dropout says so.
TF_COLD void drop_rows(const std::uint8_t* drop, int begin, int end, Word* rows) {
  for (int i = begin; i < end; ++i)
    for (int w = 0; w < kLaneWords; ++w) {
      Word* word = rows + i * kLaneWords + w;
      *word = kept_elements(*word, drop + i * kLanes + w * kElementsPerWord);
    }
}

// The keys that each lane drops, for rows [begin, end) of the block.
TF_COLD void load_drop_block(const KernelArgs& a, const KeyBlock& k, const LaneGroup& g, int begin, int end,
                             std::uint8_t* drop) {
  alignas(64) std::uint8_t some[4][kLanes];
  for (int i = begin, four = -1; i < end; ++i) {
    const int key = k.first + i;
    if (key / 4 != four) dropped_keys(a, k.sequence_index, k.kv_head, g, four = key / 4, some);
    __builtin_memcpy(drop + i * kLanes, some[key % 4], kLanes);
  }
}

template <class T>
struct BackwardTaskRun {
  using E = typename T::Element;
  const BackwardKernelArgs& b;
  const KernelArgs& a;
  const ScoreOptions& options;
  Scratch& x;
  const std::int64_t item;
  const BackwardTask& task;
  const KernelSequence& s;
  std::int64_t end_key = 0;  // of what the queries see
  bool any_far = false;      // far_rows.h

  TF_MEMBER BackwardTaskRun(const BackwardKernelArgs& args, const ScoreOptions& o, Scratch& scratch,
                            std::int64_t i)
      : b(args),
        a(args.forward),
        options(o),
        x(scratch),
        item(i),
        task(args.tasks[i]),
        s(args.forward.sequences[args.tasks[i].sequence]) {}

  void load_queries() {
    for (std::int64_t i = 0; i < task.groups; ++i) {
      GradientLanes& g = x.groups[i];
      init_gradient_lanes<T>(b, s, task.kv_head, task.first_group + i, options.modified, g);
      any_far = any_far || g.any_far;
      end_key = max_of<std::int64_t>(end_key, g.end_max);
      const E *query[kLanes], *grad[kLanes];
      for (int l = 0; l < kLanes; ++l) {
        const std::int64_t head = task.kv_head * a.group + g.head[l], row = s.first_query + g.query[l];
        query[l] = g.query[l] < 0 ? nullptr : row_of<T>(a.query, s.batch, head, row);
        grad[l] = g.query[l] < 0 ? nullptr : row_of<T>(b.grad_out, s.batch, head, row);
      }
      pack_lanes<T>(query, a.dim, query_factor(a), x.query_lanes + i * x.query_words_of_group);
      pack_lanes<T>(grad, a.dim_v, 1, x.grad_lanes + i * x.grad_words_of_group);
      const std::int64_t block = i / b.block_groups, at = i % b.block_groups * x.steps_of_group;
      pack_lane_steps<T>(query, a.dim, x.slice_words, x.query_steps + block * x.query_steps_of_block + at);
      pack_lane_steps<T>(grad, a.dim_v, x.slice_words, x.grad_steps + block * x.grad_steps_of_block + at);
      if (TF_UNLIKELY(!g.finite)) {
        clear_nonfinite_steps(x.query_steps + block * x.query_steps_of_block + at, a.dim);
        clear_nonfinite_steps(x.grad_steps + block * x.grad_steps_of_block + at, a.dim_v);
      }
    }
  }

  // In the steps of a group.
  void clear_nonfinite_steps(Word* steps, std::int64_t dim) {
    for (std::int64_t d = 0; d < dim; d += kLanes, steps += x.slice_words)
      clear_nonfinite(steps, x.steps_of_group);
  }

  KeyBlock load_keys(std::int64_t index) {
    const std::int64_t k0 = index * a.key_block;
    const int count = static_cast<int>(min_of<std::int64_t>(a.key_block, s.keys - k0));
    const int n = static_cast<int>(min_of<std::int64_t>(count, end_key - k0));
    const int padded = static_cast<int>(round_up(n, kKeyRows));
    const E* keys = row_of<T>(a.key, s.batch, task.kv_head, s.first_key + k0);
    const E* values = row_of<T>(a.value, s.batch, task.kv_head, s.first_key + k0);
    const StridedRows<T> key_rows{keys, a.key.row}, value_rows{values, a.value.row};
    pack_keys<T>(key_rows, n, padded, a.dim, x.key);
    pack_keys<T>(value_rows, n, padded, a.dim_v, x.value);
    F nonfinite;
    pack_values<T>(key_rows, n, padded, a.dim, a.key_block, x.key_columns, &nonfinite);
    const bool finite_keys = all(equal(nonfinite, nonfinite));
    if (TF_UNLIKELY(!finite_keys)) clear_nonfinite(x.key_columns, value_words(a.dim, a.key_block));
    const bool finite = finite_keys && all_finite<T>(values, a.value.row, n, a.dim_v);
    const std::int64_t rows = round_up(count, kKeyRows);
    __builtin_memset(x.dk, 0, sizeof(float) * rows * x.dk_stride);
    __builtin_memset(x.dv, 0, sizeof(float) * rows * x.dv_stride);
    return {&s, task.sequence, task.kv_head, index, static_cast<int>(k0), count, n, finite};
  }

  // The rows of a block of keys that a group may see, multiples of kKeyRows, and their mask. False: none.
  bool seen_rows(const KeyBlock& k, const GradientLanes& lanes, int* from, int* until) {
    if (lanes.end_max <= k.first || lanes.begin_min >= k.first + k.seen) return false;
    *from = max_of(lanes.begin_min - k.first, 0) / kKeyRows * kKeyRows;
    *until = static_cast<int>(round_up(min_of(lanes.end_max - k.first, k.seen), kKeyRows));
    if (!a.mask.data) return true;
    load_mask_block(a, s, task.kv_head, lanes, k.first, k.seen, x.mask);
    return !x.mask.none;
  }

  [[gnu::noinline, gnu::cold]] void measure_far_rows() {
    for (std::int64_t index = task.block_begin; index < task.block_end; ++index) {
      const KeyBlock k = load_keys(index);
      for (std::int64_t i = 0; i < task.groups; ++i) {
        GradientLanes& lanes = x.groups[i];
        int from, until;
        if (!lanes.any_far || !seen_rows(k, lanes, &from, &until)) continue;
        for (int row = from; row < until; row += kKeyRows) {
          float* s_tile = x.score_tile_at(x.p, row);
          score_tile(x.key + row * key_stride(a.dim), key_stride(a.dim),
                     x.query_lanes + i * x.query_words_of_group, steps_of(a.dim), s_tile, NoCompanion{});
          adjust_tile(options, lanes, x.mask, s_tile, k.first + row, row);
          add_far_scores(s_tile, lanes);
        }
      }
    }
    for (std::int64_t i = 0; i < task.groups; ++i)
      if (x.groups[i].any_far) finish_far_rows(a, task.kv_head, x.groups[i]);
  }

  // P, dS and dQ of group i with a block of keys. Returns the rows that dK and dV are to take from it, in
  // begin and end; begin == end: none.
  void group_gradients(const KeyBlock& k, std::int64_t i, int g, int* begin, int* end) {
    GradientLanes& lanes = x.groups[i];
    *begin = *end = 0;
    int from, until;
    if (!seen_rows(k, lanes, &from, &until)) return;
    const bool finite = k.finite && lanes.finite;
    const bool general = a.softcap > 0 || a.dropout_threshold || b.grad_mask.data || lanes.any_far;
    GradientOptions gradient{};
    if (TF_UNLIKELY(general)) {
      gradient.dropout_scale = a.dropout_scale;
      if (a.softcap > 0) gradient.cap_slope = x.cap_slope;
      if (b.grad_mask.data) gradient.score_gradients = x.score_gradients;
      if (a.dropout_threshold) {
        load_drop_block(a, k, lanes, from, until, x.drop);
        gradient.drop = x.drop;
      }
      score_gradients<true>(b, x, options, gradient, i, g, k.first, from, until);
      if (b.grad_mask.data)
        add_mask_gradient(b, task.sequence, task.kv_head, lanes, x.mask, x.score_gradients, k.first, from,
                          min_of(until, k.seen));
    } else {
      score_gradients<false>(b, x, options, gradient, i, g, k.first, from, until);
    }
    const ProductsOfBlock products{x.p + g * x.rows_of_group,
                                   x.ds + g * x.rows_of_group,
                                   x.ds_packed,
                                   x.dk,
                                   x.dv,
                                   x.dq + i * x.dq_floats_of_group,
                                   x.dk_stride,
                                   x.dv_stride,
                                   k.first,
                                   from,
                                   until};
    if (TF_UNLIKELY(!finite)) clear_unseen(a, lanes, x.mask, products);
    if (TF_UNLIKELY(a.dropout_threshold)) drop_rows(x.drop, from, until, products.p);
    if (b.grad_query.data) {
      outputs(x.key_columns, a.dim, a.key_block, kElementsPerWord == 1 ? products.ds : products.ds_packed,
              from, until, products.dq, !lanes.started);
      lanes.started = true;
    }
    if (TF_UNLIKELY(!finite)) add_nonfinite_products<T>(b, s, task.kv_head, lanes, x.mask, products);
    *begin = from;
    *end = until;
  }

  // All queries of the task with a block of keys.
  void block_gradients(const KeyBlock& k) {
    for (std::int64_t i0 = 0; i0 < task.groups; i0 += b.block_groups) {
      const int count = static_cast<int>(min_of<std::int64_t>(b.block_groups, task.groups - i0));
      TileGroups& tiles = x.tiles;
      int first = a.key_block, last = 0;
      for (int t = 0; t < kTilesOfBlock; ++t) tiles.count[t] = 0;
      for (int g = 0; g < count; ++g) {
        int begin, end;
        group_gradients(k, i0 + g, g, &begin, &end);
        if (begin == end) continue;
        first = min_of(first, begin);
        last = max_of(last, end);
        for (int t = begin / kKeyRows; t < end / kKeyRows; ++t)
          tiles.group[t][tiles.count[t]++] = static_cast<std::uint8_t>(g);
      }
      const std::int64_t block = i0 / b.block_groups;
      if (b.grad_value.data)
        add_lane_products({x.p, x.grad_steps + block * x.grad_steps_of_block, x.rows_of_group,
                           x.steps_of_group, x.slice_words, x.dv, x.dv_stride, a.dim_v},
                          first, last);
      if (b.grad_key.data)
        add_lane_products({x.ds, x.query_steps + block * x.query_steps_of_block, x.rows_of_group,
                           x.steps_of_group, x.slice_words, x.dk, x.dk_stride, a.dim},
                          first, last);
    }
  }

  // A slice of columns stays in L1 while all tiles of keys take it.
  void add_lane_products(const LaneProduct& product, int first, int last) {
    for (int slice = 0; slice * kLanes < product.dim; ++slice)
      for (int row = first; row < last; row += kKeyRows) {
        const int t = row / kKeyRows;
        if (x.tiles.count[t]) lane_product(product, x.tiles.group[t], x.tiles.count[t], row, slice);
      }
  }

  void store_rows(const Operand& to, const KeyBlock& k, const float* sums, const float* more,
                  std::int64_t stride, std::int64_t dim, float scale) {
    if (!to.data) return;
    for (int i = 0; i < k.count; ++i) {
      E* row = const_cast<E*>(row_of<T>(to, s.batch, task.kv_head, s.first_key + k.first + i));
      for (std::int64_t d = 0; d < dim; d += kVecLanes) {
        F v = load(sums + i * stride + d);
        if (more) v = add(load(more + i * stride + d), v);
        v = mul(v, set(scale));
        if (TF_LIKELY(dim - d >= kVecLanes))
          store_elements(row + d, v, T{});
        else
          store_some<T>(row + d, v, static_cast<int>(dim - d));
      }
    }
  }

  // dK and dV of the block: added to those of the tasks before, and written by the last task that sees it.
  void add_to_keys(const KeyBlock& k) {
    float* sums = nullptr;
    if (task.slot >= 0)
      sums = b.slots + task.slot * b.slot_floats + k.index * a.key_block * (x.dk_stride + x.dv_stride);
    const bool first = !any_touches(b, task.head_begin, item, k.index);
    const bool last = !any_touches(b, item + 1, task.head_end, k.index);
    const std::int64_t dk_floats = a.key_block * x.dk_stride;
    if (first && !last) wait_for_tasks(b, 0, task.slot_free_after, k.index, &x.finished);
    if (!first) wait_for_tasks(b, task.head_begin, item, k.index, &x.finished);
    if (last) {
      store_rows(b.grad_key, k, x.dk, first ? nullptr : sums, x.dk_stride, a.dim, a.scale);
      store_rows(b.grad_value, k, x.dv, first ? nullptr : sums + dk_floats, x.dv_stride, a.dim_v,
                 a.dropout_scale);
      return;
    }
    const int rows = static_cast<int>(round_up(k.count, kKeyRows));
    add_sums(sums, x.dk, rows * x.dk_stride, first);
    add_sums(sums + dk_floats, x.dv, rows * x.dv_stride, first);
  }

  static void add_sums(float* to, const float* from, std::int64_t n, bool first) {
    for (std::int64_t i = 0; i < n; i += kVecLanes)
      store(to + i, first ? load(from + i) : add(load(to + i), load(from + i)));
  }

  // Keys that no query sees have the gradient zero.
  void store_unseen_keys() {
    const std::int64_t blocks = ceil_div(s.keys, a.key_block);
    for (std::int64_t index = 0; index < blocks; ++index) {
      if (any_touches(b, task.head_begin, task.head_end, index)) continue;
      const std::int64_t k0 = index * a.key_block;
      const KeyBlock k{&s,
                       task.sequence,
                       task.kv_head,
                       index,
                       static_cast<int>(k0),
                       static_cast<int>(min_of<std::int64_t>(a.key_block, s.keys - k0)),
                       0,
                       true};
      __builtin_memset(x.dk, 0, sizeof(float) * a.key_block * x.dk_stride);
      __builtin_memset(x.dv, 0, sizeof(float) * a.key_block * x.dv_stride);
      store_rows(b.grad_key, k, x.dk, nullptr, x.dk_stride, a.dim, 1);
      store_rows(b.grad_value, k, x.dv, nullptr, x.dv_stride, a.dim_v, 1);
    }
  }

  void store_queries() {
    if (!b.grad_query.data) return;
    alignas(64) float factor[kLanes];
    for (std::int64_t i = 0; i < task.groups; ++i) {
      const GradientLanes& g = x.groups[i];
      E* row[kLanes];
      for (int l = 0; l < kLanes; ++l) {
        factor[l] = g.started ? a.scale : 0;
        row[l] = g.query[l] < 0
                     ? nullptr
                     : const_cast<E*>(row_of<T>(b.grad_query, s.batch, task.kv_head * a.group + g.head[l],
                                                s.first_query + g.query[l]));
      }
      write_lanes<T>(x.dq + i * x.dq_floats_of_group, a.dim, factor, row);
    }
  }

  void run() {
    if (item == task.head_begin) store_unseen_keys();
    load_queries();
    x.mask.first_key = -1;
    if (TF_UNLIKELY(any_far)) measure_far_rows();
    for (std::int64_t index = task.block_begin; index < task.block_end; ++index) {
      const KeyBlock k = load_keys(index);
      if (b.mask_in_order) wait_for_tasks(b, 0, item, b.mask_whole ? INT64_MAX - 1 : index, &x.finished);
      block_gradients(k);
      add_to_keys(k);
      leave_block(b, item, index);
    }
    store_queries();
    leave_task(b, item);
  }
};

std::size_t backward_scratch_bytes(const BackwardKernelArgs& b) { return Scratch(b).bytes; }

std::int64_t slot_floats_per_key(const BackwardKernelArgs& b) {
  return lane_sum_stride(b.forward.dim) + lane_sum_stride(b.forward.dim_v);
}

void run_backward(const BackwardKernelArgs& b, int worker) {
  Scratch scratch(b, b.forward.scratch + b.forward.scratch_bytes * worker);
  const ScoreOptions options = score_options(b.forward);
  enter_unit();
  for (;;) {
    const std::int64_t item = __atomic_fetch_add(b.forward.next_item, 1, __ATOMIC_RELAXED);
    if (item >= b.tasks_count) break;
    if constexpr (kElementsPerWord == 1) {
      if (b.forward.query.dtype == DType::f32)
        BackwardTaskRun<F32>(b, options, scratch, item).run();
      else if (b.forward.query.dtype == DType::f16)
        BackwardTaskRun<F16>(b, options, scratch, item).run();
      else
        BackwardTaskRun<BF16>(b, options, scratch, item).run();
    } else {
      BackwardTaskRun<BF16>(b, options, scratch, item).run();
    }
  }
  leave_unit();
}

}  // namespace

extern const attention::BackwardKernel attention_backward_kernel;
const attention::BackwardKernel attention_backward_kernel = {
    kGradientKeyBlock, kGradientGroups, backward_scratch_bytes, slot_floats_per_key, run_backward};

}  // namespace tileformer::TILEFORMER_UNIT
