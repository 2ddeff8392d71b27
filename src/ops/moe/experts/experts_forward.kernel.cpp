// Mixture of experts for one unit, in the transposed form: lanes are (token, expert) pairs.
//
//   pack      hidden rows of an expert's pairs, gathered          X^T, kLanes pairs a group
//   gate_up   for each expert, for each slice of inter:
//               C^T = W X^T for all groups,  h = up * act(gate)   h leaves the tile packed for the next
//               product
//   down      for each slice of hidden, for each expert:
//               C^T = W h for all groups,    sum[token] += weight * C
//
// A slice of hidden belongs to one worker, who adds up the experts in their order: the same bits for any
// number of threads. Experts with few pairs stream their weights instead (streamed.h).

#include "tile/unit.h"
//
#include "tile/pack.h"
//
#include "ops/moe/common/bias.h"
#include "ops/moe/common/forms.h"
#include "ops/moe/common/items.h"
#include "ops/moe/common/multiplied.h"
#include "ops/moe/common/slice_product.h"
#include "ops/moe/experts/activation.h"
#include "ops/moe/experts/combine.h"
#include "ops/moe/experts/inter_slice.h"
#include "ops/moe/experts/kernel_args.h"

namespace tileformer::TILEFORMER_UNIT {
namespace {

using moe::Group;
using moe::KernelArgs;
using moe::Run;
using moe::WeightOperand;

TF_INLINE std::int64_t h_stride(const KernelArgs& a) { return round_up(a.inter, 32); }

// Words of the rows of a run as they are packed for weights that stream.
std::int64_t streamed_words(const KernelArgs& a, const WeightOperand& w, std::int64_t elements, int pairs) {
  return for_dtype(a.dtype, [&]<class T>(T) {
    return for_form<T>(w, [&]<class Form>(Form) { return Form::words(elements, pairs); });
  });
}
std::int64_t x_words(const KernelArgs& a, const Run& run) {
  if (run.rows) return streamed_words(a, a.gate_up, a.hidden_dim, run.pairs);
  return ceil_div(run.pairs, kLanes) * query_words(a.hidden_dim);
}
std::int64_t h_words(const KernelArgs& a, const Run& run) {
  if (run.rows) return round_up(run.pairs * h_stride(a) / kElementsPerWord, kVecLanes);
  return ceil_div(run.pairs, kLanes) * query_words(a.inter);
}

TF_INLINE int groups_of(const Run& run) { return static_cast<int>(ceil_div(run.pairs, kLanes)); }
TF_INLINE int lanes_of(const Run& run, int group) { return min_of(kLanes, run.pairs - group * kLanes); }
TF_INLINE bool last_is_half(const Run& run) { return lanes_of(run, groups_of(run) - 1) <= kLanes / 2; }

// A worker's buffers.
struct Scratch {
  Word *panel, *packed;  // of weights; of rows of h
  float *c, *y, *bias;
  float *gate, *up;  // where both are wanted
  std::size_t bytes;

  explicit Scratch(const KernelArgs& a, char* base = nullptr) {
    std::size_t at = 0;
    auto take = [&](std::int64_t size) {
      char* p = base + at;
      at += (static_cast<std::size_t>(size) + 63) / 64 * 64 + 64;
      return p;
    };
    const std::int64_t panel_inter = slice_rows(min_of(a.inter_slice, a.inter_panel)),
                       panel_hidden = slice_rows(min_of(a.hidden_slice, a.hidden_panel)),
                       panel_rows = max_of(2 * panel_inter, panel_hidden);
    const std::int64_t rows =
        max_of(2 * streamed_rows(slice_rows(a.inter_slice)), streamed_rows(slice_rows(a.hidden_slice)));
    panel = reinterpret_cast<Word*>(take(sizeof(Word) * 2 * panel_words(panel_rows)));
    packed = reinterpret_cast<Word*>(take(sizeof(Word) * streamed_words(a, a.down, a.inter, kMaxRowPairs)));
    c = reinterpret_cast<float*>(
        take(sizeof(float) * panel_rows * kLanes * max_of<std::int64_t>(a.max_groups, 1)));
    y = reinterpret_cast<float*>(take(sizeof(float) * kMaxRowPairs * rows));
    bias = reinterpret_cast<float*>(take(sizeof(float) * (rows + kVecLanes)));
    gate = reinterpret_cast<float*>(take(a.gate_up_out ? sizeof(float) * panel_inter * kLanes : 0));
    up = reinterpret_cast<float*>(take(a.gate_up_out ? sizeof(float) * panel_inter * kLanes : 0));
    bytes = (at + 4095) / 4096 * 4096;
  }
};

// Of weights stored as T or as codes.
template <class T>
TF_INLINE const void* weights_row(const WeightOperand& w, std::int64_t expert, std::int64_t row) {
  const std::int64_t element = expert * w.weight.expert + row * w.weight.row;
  return for_weights<T>(w, [&]<class W>(W) -> const void* {
    return static_cast<const typename W::Element*>(w.weight.data) + element;
  });
}

template <class T>
TF_INLINE const typename T::Element* hidden_row(const KernelArgs& a, std::int64_t pair) {
  return static_cast<const typename T::Element*>(a.hidden) + a.pair_token[pair] * a.hidden_stride;
}

// ---- pack
// -----------------------------------------------------------------------------------------------------------

template <class T>
TF_NOINLINE void pack_group(const KernelArgs& a, const Run& run, int group) {
  Word* x = static_cast<Word*>(a.x) + run.x;
  if (run.rows) {
    for_form<T>(a.gate_up, [&]<class Form>(Form) {
      for (int i = 0; i < run.pairs; ++i)
        Form::template pack<T>(hidden_row<T>(a, run.first_pair + i), a.hidden_dim, i, run.pairs, x);
    });
    return;
  }
  const typename T::Element* row[kLanes];
  const int lanes = lanes_of(run, group);
  for (int l = 0; l < kLanes; ++l)
    row[l] = l < lanes ? hidden_row<T>(a, run.first_pair + group * kLanes + l) : nullptr;
  pack_lanes<T>(row, a.hidden_dim, 1, x + group * query_words(a.hidden_dim));
}

// ---- gate and up
// ------------------------------------------------------------------------------------------------------------

// C^T of one group -> h packed, from word `first / W` of h on.
template <ExpertActivation A>
TF_NOINLINE void activate_group(const KernelArgs& a, const Scratch& x, const InterSlice& s, const float* c,
                                Word* h) {
  const GateParameters parameters{set(a.alpha), set(a.limit)};
  h += s.first / kElementsPerWord * kLanes;
  const int words = static_cast<int>(ceil_div(s.n, kElementsPerWord));
  for (int w = 0; w < words; ++w) {
    F e[kElementsPerWord][kVecs];
    TF_UNROLL for (int k = 0; k < kElementsPerWord; ++k) {
      const int i = w * kElementsPerWord + k;
      const bool exists = kElementsPerWord == 1 || i < s.n;
      const std::int64_t gate_row = exists ? s.gate(i) : 0, up_row = exists ? s.up(i) : 0;
      const F gate_bias = set(x.bias[gate_row]), up_bias = set(x.bias[up_row]);
      TF_UNROLL for (int j = 0; j < kVecs; ++j) {
        const F g = add(load(c + gate_row * kLanes + j * kVecLanes), gate_bias);
        const F u = add(load(c + up_row * kLanes + j * kVecLanes), up_bias);
        if (TF_UNLIKELY(a.gate_up_out)) {
          store(x.gate + i * kLanes + j * kVecLanes, g);
          store(x.up + i * kLanes + j * kVecLanes, u);
        }
        e[k][j] = exists ? gated<A>(g, u, parameters) : zero();
      }
    }
    store_lane_pairs(h + w * kLanes, e);
  }
  if (s.first + s.n < a.inter) return;
  for (std::int64_t w = s.first / kElementsPerWord + words; w < steps_of(a.inter); ++w)
    __builtin_memset(h + (w - s.first / kElementsPerWord) * kLanes, 0, sizeof(Word) * kLanes);
}

template <class T>
TF_NOINLINE void write_gate_up(const KernelArgs& a, const Scratch& x, const InterSlice& s,
                               std::int64_t first_pair, int lanes) {
  typename T::Element *gate[kLanes], *up[kLanes];
  alignas(64) float ones[kLanes];
  for (int l = 0; l < kLanes; ++l) {
    auto* row = static_cast<typename T::Element*>(a.gate_up_out) + (first_pair + l) * a.gate_up_out_stride;
    gate[l] = l < lanes ? row + s.first : nullptr;
    up[l] = l < lanes ? row + a.inter + s.first : nullptr;
    ones[l] = 1;
  }
  write_lanes<T>(x.gate, s.n, ones, gate);
  write_lanes<T>(x.up, s.n, ones, up);
}

template <class T>
TF_NOINLINE void gate_up_tiles(const KernelArgs& a, const Scratch& x, const Run& run, const InterSlice& s,
                               const void* next) {
  const int rows = s.rows();
  const WeightSlice weights{&a.gate_up, run.expert,   s.parts(), {s.first_row(), a.inter + s.first},
                            rows,       a.hidden_dim, next};
  const std::int64_t c_group = weights.parts * s.part_rows * kLanes;
  const int groups = groups_of(run);
  for_weights<T>(a.gate_up, [&]<class W>(W) {
    slice_product<W>(weights, {static_cast<const Word*>(a.x) + run.x, query_words(a.hidden_dim), groups,
                               last_is_half(run), x.c, s.part_rows * kLanes, x.panel});
  });
  for (int p = 0; p < weights.parts; ++p)
    load_bias(a.gate_up, run.expert, weights.first_row[p], rows, x.bias + p * s.part_rows);
  for (int g = 0; g < groups; ++g) {
    Word* h = static_cast<Word*>(a.h) + run.h + g * query_words(a.inter);
    for_activation(a.activation,
                   [&]<ExpertActivation A>() { activate_group<A>(a, x, s, x.c + g * c_group, h); });
    if (TF_UNLIKELY(a.gate_up_out)) write_gate_up<T>(a, x, s, run.first_pair + g * kLanes, lanes_of(run, g));
  }
}

// y of one pair -> its h.
template <class T, ExpertActivation A>
TF_NOINLINE void activate_row(const KernelArgs& a, const Scratch& x, const InterSlice& s, const float* y,
                              H::Element* h, typename T::Element* gate_up_out) {
  const GateParameters parameters{set(a.alpha), set(a.limit)};
  alignas(64) float gate[kVecLanes] = {}, up[kVecLanes] = {};
  for (int i = 0; i < s.n; i += kVecLanes) {
    const int n = min_of(s.n - i, kVecLanes);
    for (int k = 0; k < n; ++k) {
      const std::int64_t g = s.gate(i + k), u = s.up(i + k);
      gate[k] = y[g] + x.bias[g];
      up[k] = y[u] + x.bias[u];
    }
    const F value = gated<A>(load(gate), load(up), parameters);
    store_some_of<H>(h + s.first + i, value, n);
    if (TF_UNLIKELY(gate_up_out)) {
      store_some_of<T>(gate_up_out + s.first + i, load(gate), n);
      store_some_of<T>(gate_up_out + a.inter + s.first + i, load(up), n);
    }
  }
}

template <class T>
TF_NOINLINE void gate_up_rows(const KernelArgs& a, const Scratch& x, const Run& run, InterSlice s) {
  const int parts = s.parts(), rows = s.rows();
  s.part_rows = streamed_rows(rows);
  const std::int64_t y_stride = parts * s.part_rows;
  for (int p = 0; p < parts; ++p) {
    const std::int64_t first = s.interleaved ? 2 * s.first : p * a.inter + s.first;
    load_bias(a.gate_up, run.expert, first, rows, x.bias + p * s.part_rows);
    for_form<T>(a.gate_up, [&]<class Form>(Form) {
      Form::sums({&a.gate_up, run.expert, first, rows, a.hidden_dim, run.pairs,
                  static_cast<const Word*>(a.x) + run.x, x.y + p * s.part_rows, y_stride});
    });
  }
  auto* h = reinterpret_cast<H::Element*>(static_cast<Word*>(a.h) + run.h);
  for (int i = 0; i < run.pairs; ++i) {
    auto* saved = a.gate_up_out ? static_cast<typename T::Element*>(a.gate_up_out) +
                                      (run.first_pair + i) * a.gate_up_out_stride
                                : nullptr;
    for_activation(a.activation, [&]<ExpertActivation A>() {
      activate_row<T, A>(a, x, s, x.y + i * y_stride, h + i * h_stride(a), saved);
    });
  }
}

// ---- down
// -----------------------------------------------------------------------------------------------------------

// Elements [first, first + n) of hidden.
struct HiddenSlice {
  std::int64_t first;
  int n;
};

TF_INLINE float* sum_row(const KernelArgs& a, std::int64_t pair, const HiddenSlice& s) {
  return a.sum + a.pair_token[pair] * a.sum_stride + s.first;
}

template <class T>
TF_NOINLINE void down_tiles(const KernelArgs& a, const Scratch& x, const Run& run, const HiddenSlice& s,
                            const void* next) {
  const std::int64_t part_rows = slice_rows(s.n);
  const int groups = groups_of(run);
  for_weights<T>(a.down, [&]<class W>(W) {
    slice_product<W>({&a.down, run.expert, 1, {s.first, 0}, s.n, a.inter, next},
                     {static_cast<const Word*>(a.h) + run.h, query_words(a.inter), groups, last_is_half(run),
                      x.c, part_rows * kLanes, x.panel});
  });
  load_bias(a.down, run.expert, s.first, s.n, x.bias);
  for (int g = 0; g < groups; ++g) {
    const std::int64_t pair = run.first_pair + g * kLanes;
    const int lanes = lanes_of(run, g);
    float* row[kLanes];
    alignas(64) float factor[kLanes];
    for (int l = 0; l < kLanes; ++l) {
      row[l] = l < lanes ? sum_row(a, pair + l, s) : nullptr;
      factor[l] = l < lanes ? a.pair_weight[pair + l] : 0;
    }
    add_lanes(x.c + g * part_rows * kLanes, s.n, x.bias, factor, lanes, row);
  }
}

// As many elements at a time as a panel holds.
template <class T>
TF_INLINE void down_panels(const KernelArgs& a, const Scratch& x, const Run& run, const HiddenSlice& s,
                           const void* next) {
  const std::int64_t end = s.first + s.n;
  for (std::int64_t first = s.first; first < end; first += a.hidden_panel) {
    const std::int64_t later = first + a.hidden_panel;
    down_tiles<T>(a, x, run, {first, static_cast<int>(min_of(a.hidden_panel, end - first))},
                  later < end ? weights_row<T>(a.down, run.expert, later) : next);
  }
}

template <class T>
TF_NOINLINE void down_rows(const KernelArgs& a, const Scratch& x, const Run& run, const HiddenSlice& s) {
  const auto* h = reinterpret_cast<const H::Element*>(static_cast<const Word*>(a.h) + run.h);
  const std::int64_t y_stride = streamed_rows(s.n);
  load_bias(a.down, run.expert, s.first, s.n, x.bias);
  for_form<T>(a.down, [&]<class Form>(Form) {
    for (int i = 0; i < run.pairs; ++i)
      Form::template pack<H>(h + i * h_stride(a), a.inter, i, run.pairs, x.packed);
    Form::sums({&a.down, run.expert, s.first, s.n, a.inter, run.pairs, x.packed, x.y, y_stride});
  });
  for (int i = 0; i < run.pairs; ++i) {
    float* to = sum_row(a, run.first_pair + i, s);
    const F factor = set(a.pair_weight[run.first_pair + i]);
    for (int d = 0; d < s.n; d += kVecLanes)
      add_scaled(to + d, add(load(x.y + i * y_stride + d), load(x.bias + d)), factor, s.n - d);
  }
}

template <class T>
TF_INLINE void down_slice(const KernelArgs& a, const Scratch& x, const HiddenSlice& s) {
  if (a.first_wave)
    for (std::int64_t t = 0; t < a.tokens; ++t)
      __builtin_memset(a.sum + t * a.sum_stride + s.first, 0, sizeof(float) * s.n);
  for (std::int64_t r = 0; r < a.runs_count; ++r) {
    const Run& run = a.runs[r];
    if (run.rows)
      down_rows<T>(a, x, run, s);
    else
      down_panels<T>(a, x, run, s,
                     r + 1 < a.runs_count ? weights_row<T>(a.down, a.runs[r + 1].expert, s.first) : nullptr);
  }
  if (a.last_wave && a.out != a.sum)
    convert_rows<T>(a.sum + s.first, a.sum_stride, a.tokens, s.n,
                    static_cast<typename T::Element*>(a.out) + s.first, a.out_stride);
}

// ---- phases
// ------------------------------------------------------------------------------------------------------------

void pack(const KernelArgs& a, int) {
  for_dtype(a.dtype, [&]<class T>(T) {
    for_items(a.next_item, a.groups_count,
              [&](std::int64_t i) { pack_group<T>(a, a.runs[a.groups[i].run], a.groups[i].index); });
  });
}

// The first rows of the item that this worker is likely to take next.
template <class T>
TF_INLINE const void* next_gates(const KernelArgs& a, std::int64_t item, std::int64_t slices) {
  item += a.workers;
  if (item >= a.runs_count * slices) return nullptr;
  return weights_row<T>(a.gate_up, a.runs[item / slices].expert,
                        item % slices * a.inter_slice * (a.interleaved ? 2 : 1));
}

// Elements [first, end) of inter, as many at a time as a panel holds.
template <class T>
TF_INLINE void gate_up_panels(const KernelArgs& a, const Scratch& x, const Run& run, std::int64_t first,
                              std::int64_t end, const void* next) {
  for (; first < end; first += a.inter_panel) {
    const std::int64_t later = min_of(first + a.inter_panel, end);
    gate_up_tiles<T>(
        a, x, run, {first, later, a.interleaved},
        later < end ? weights_row<T>(a.gate_up, run.expert, later * (a.interleaved ? 2 : 1)) : next);
  }
}

void gate_up(const KernelArgs& a, int worker) {
  const Scratch x(a, a.scratch + a.scratch_bytes * worker);
  const std::int64_t slices = ceil_div(a.inter, a.inter_slice);
  enter_unit();
  for_dtype(a.dtype, [&]<class T>(T) {
    for_items(a.next_item, a.runs_count * slices, [&](std::int64_t item) {
      const Run& run = a.runs[item / slices];
      const std::int64_t first = item % slices * a.inter_slice, end = min_of(first + a.inter_slice, a.inter);
      if (run.rows)
        gate_up_rows<T>(a, x, run, {first, end, a.interleaved});
      else
        gate_up_panels<T>(a, x, run, first, end, next_gates<T>(a, item, slices));
    });
  });
  leave_unit();
}

void down(const KernelArgs& a, int worker) {
  const Scratch x(a, a.scratch + a.scratch_bytes * worker);
  enter_unit();
  for_dtype(a.dtype, [&]<class T>(T) {
    for_items(a.next_item, ceil_div(a.hidden_dim, a.hidden_slice), [&](std::int64_t item) {
      const std::int64_t first = item * a.hidden_slice;
      down_slice<T>(a, x, {first, static_cast<int>(min_of(a.hidden_slice, a.hidden_dim - first))});
    });
  });
  leave_unit();
}

std::size_t scratch_bytes(const KernelArgs& a) { return Scratch(a).bytes; }

}  // namespace

extern const moe::Unit experts_unit;
const moe::Unit experts_unit = {TF_STRINGIZE(TILEFORMER_UNIT),
                                kUnitName,
                                kLanes,
                                kKeyRows,
                                kDepth,
                                kMaxRowPairs,
                                kElementsPerWord > 1,
                                sizeof(Word),
                                x_words,
                                h_words,
                                scratch_bytes,
                                pack,
                                gate_up,
                                down};

}  // namespace tileformer::TILEFORMER_UNIT
