// The gradients at the activation, of a slice of inter: Q^T = down^T dY^T, gate and up in; D, weight * h and
// <q, h> out. Included by kernels only.
#pragma once

#include "ops/moe/common/bias.h"
#include "ops/moe/experts/backward/activation_gradient.h"
#include "ops/moe/experts/backward/layout.h"
#include "ops/moe/experts/inter_slice.h"

namespace tileformer::TILEFORMER_UNIT {

using moe::WeightOperand;

// A group in this phase.
struct GroupOutputs {
  const float* q;  // [n][kLanes]; null: not needed
  const float* weight;
  int lanes;
  float* weight_parts;    // [kLanes]; null: not wanted
  Word *d, *d_lanes, *h;  // of the group; null: not wanted
};

// Gate and up of a group -> x.gate, x.up.
template <class T>
TF_NOINLINE void read_gate_up(const KernelArgs& a, const BackwardScratch& x, const InterSlice& s,
                              std::int64_t first_pair, int lanes) {
  const typename T::Element *gate[kLanes], *up[kLanes];
  for (int l = 0; l < kLanes; ++l) {
    const auto* row =
        static_cast<const typename T::Element*>(a.gate_up_out) + (first_pair + l) * a.gate_up_out_stride;
    gate[l] = l < lanes ? row + s.first : nullptr;
    up[l] = l < lanes ? row + a.inter + s.first : nullptr;
  }
  read_lanes<T>(gate, s.n, x.gate);
  read_lanes<T>(up, s.n, x.up);
}
// Asks for what read_gate_up will read: short pieces of rows that lie far apart.
template <class T>
TF_INLINE void ask_for_gate_up(const KernelArgs& a, const InterSlice& s, std::int64_t first_pair, int lanes) {
  const std::int64_t bytes = s.n * static_cast<std::int64_t>(sizeof(typename T::Element));
  for (int l = 0; l < lanes; ++l) {
    const auto* row =
        static_cast<const typename T::Element*>(a.gate_up_out) + (first_pair + l) * a.gate_up_out_stride;
    for (std::int64_t at = 0; at < bytes; at += 64) {
      prefetch_far(reinterpret_cast<const char*>(row + s.first) + at);
      prefetch_far(reinterpret_cast<const char*>(row + a.inter + s.first) + at);
    }
  }
}
TF_NOINLINE void add_gate_up_bias(const BackwardScratch& x, const InterSlice& s, const float* c) {
  for (int i = 0; i < s.n; ++i) {
    const std::int64_t gate = s.gate(i), up = s.up(i);
    TF_UNROLL for (int j = 0; j < kLanes; j += kVecLanes) {
      store(x.gate + i * kLanes + j, add(load(c + gate * kLanes + j), set(x.bias[gate])));
      store(x.up + i * kLanes + j, add(load(c + up * kLanes + j), set(x.bias[up])));
    }
  }
}

// Zeros behind the last slice's words, up to whole steps.
TF_INLINE void clear_words(Word* lanes, std::int64_t from, std::int64_t to) {
  for (std::int64_t w = from; w < to; ++w) __builtin_memset(lanes + w * kLanes, 0, sizeof(Word) * kLanes);
}

template <ExpertActivation A>
TF_NOINLINE void group_gradients(const KernelArgs& a, const BackwardScratch& x, const InterSlice& s,
                                 const GroupOutputs& g) {
  const GateParameters parameters{set(a.alpha), set(a.limit)};
  alignas(64) float exists[kLanes];
  for (int l = 0; l < kLanes; ++l) exists[l] = l < g.lanes ? 1 : 0;
  M live[kVecs];
  F weight[kVecs], dot[kVecs];
  TF_UNROLL for (int j = 0; j < kVecs; ++j) {
    live[j] = greater(load(exists + j * kVecLanes), zero());
    weight[j] = load(g.weight + j * kVecLanes);
    dot[j] = zero();
  }
  // Rows of D, and words of it as lanes.
  const std::int64_t up_row = a.interleaved ? 1 : slice_rows(a.inter), step = a.interleaved ? 2 : 1;
  Word* d_rows = g.d ? g.d + s.first_row() * kLaneWords : nullptr;
  Word* h_rows = g.h ? g.h + s.first * kLaneWords : nullptr;
  Word *gates = nullptr, *ups = nullptr;
  if (g.d_lanes) {
    gates = g.d_lanes + s.first_row() / kElementsPerWord * kLanes;
    ups = gates + query_words(a.inter);
  }
  const int words = static_cast<int>(ceil_div(s.n, kElementsPerWord));
  for (int w = 0; w < words; ++w) {
    F by_gate[kElementsPerWord][kVecs], by_up[kElementsPerWord][kVecs];
    TF_UNROLL for (int k = 0; k < kElementsPerWord; ++k) {
      const int i = w * kElementsPerWord + k;
      if (kElementsPerWord > 1 && i >= s.n) {
        TF_UNROLL for (int j = 0; j < kVecs; ++j) by_gate[k][j] = by_up[k][j] = zero();
        continue;
      }
      F h[kVecs];
      TF_UNROLL for (int j = 0; j < kVecs; ++j) {
        const std::int64_t at = i * kLanes + j * kVecLanes;
        const Gated y = gated_gradient<A>(load(x.gate + at), load(x.up + at), parameters);
        h[j] = select(live[j], mul(weight[j], y.h), zero());
        const F q = g.q ? load(g.q + at) : zero(), dh = mul(weight[j], q);
        dot[j] = fma(q, y.h, dot[j]);
        by_gate[k][j] = select(live[j], mul(dh, y.by_gate), zero());
        by_up[k][j] = select(live[j], mul(dh, y.by_up), zero());
      }
      if (d_rows) {
        store_lane_row(d_rows + i * step * kLaneWords, by_gate[k]);
        store_lane_row(d_rows + (i * step + up_row) * kLaneWords, by_up[k]);
      }
      if (h_rows) store_lane_row(h_rows + i * kLaneWords, h);
      if (gates && a.interleaved) {
        F both[kElementsPerWord][kVecs];
        TF_UNROLL for (int e = 0; e < kElementsPerWord; ++e) TF_UNROLL for (int j = 0; j < kVecs; ++j)
            both[e][j] = e == 0 ? by_gate[k][j] : by_up[k][j];
        store_lane_pairs(gates + i * kLanes, both);
      }
    }
    if (gates && !a.interleaved) {
      store_lane_pairs(gates + w * kLanes, by_gate);
      store_lane_pairs(ups + w * kLanes, by_up);
    }
  }
  if (g.weight_parts) TF_UNROLL for (int j = 0; j < kVecs; ++j) store(g.weight_parts + j * kVecLanes, dot[j]);
  if (!gates || s.first + s.n < a.inter) return;
  const std::int64_t end = steps_of(part_size(a)) - s.first_row() / kElementsPerWord;
  if (a.interleaved) return clear_words(gates, s.n, end);
  clear_words(gates, words, end);
  clear_words(ups, words, end);
}

// Item `index` of the phase: a slice of inter for a run of groups.
template <class T>
TF_NOINLINE void inter_slice(const BackwardKernelArgs& b, const BackwardScratch& x, std::int64_t index) {
  const KernelArgs& a = b.forward;
  const std::int64_t slices = ceil_div(a.inter, a.inter_slice), item = index % slices;
  const GroupRun& run = b.runs[index / slices];
  const std::int64_t first = item * a.inter_slice;
  const InterSlice s(first, min_of(first + a.inter_slice, a.inter), a.interleaved);
  const Share& share = b.shares[run.share];
  const GroupWords words = group_words(b);
  const std::int64_t first_group = share.first_group + run.first;
  const std::int64_t q_group = slice_rows(s.n) * kLanes, gate_up_group = s.parts() * s.part_rows * kLanes;
  const bool half = ends_half(share, run);
  if (b.needs_q) {
    WeightOperand down{};
    down.weight = exchanged(a.down.weight);
    slice_product<T>({&down, share.expert, 1, {s.first, 0}, s.n, a.hidden_dim, nullptr},
                     {at_group(b.grad_lanes, words.grad_lanes, first_group), words.grad_lanes, run.groups,
                      half, x.c, q_group, x.panel});
  }
  if (!a.gate_up_out) {
    const WeightSlice weights{&a.gate_up, share.expert, s.parts(), {s.first_row(), a.inter + s.first},
                              s.rows(),   a.hidden_dim, nullptr};
    slice_product<T>(weights, {at_group(b.hidden_lanes, words.hidden_lanes, first_group), words.hidden_lanes,
                               run.groups, half, x.gate_up, s.part_rows * kLanes, x.panel});
    for (int p = 0; p < s.parts(); ++p)
      load_bias(a.gate_up, share.expert, weights.first_row[p], s.rows(), x.bias + p * s.part_rows);
  }
  for (int g = 0; g < run.groups; ++g) {
    const int lanes = lanes_of(share, run.first + g);
    const std::int64_t group = first_group + g, pair = share.first_pair + (run.first + g) * kLanes;
    if (a.gate_up_out && g + 1 < run.groups)
      ask_for_gate_up<T>(a, s, pair + kLanes, lanes_of(share, run.first + g + 1));
    if (a.gate_up_out)
      read_gate_up<T>(a, x, s, pair, lanes);
    else
      add_gate_up_bias(x, s, x.gate_up + g * gate_up_group);
    alignas(64) float weight[kLanes];
    for (int l = 0; l < kLanes; ++l) weight[l] = l < lanes ? a.pair_weight[pair + l] : 0;
    const GroupOutputs to{b.needs_q ? x.c + g * q_group : nullptr,
                          weight,
                          lanes,
                          b.weight_parts ? b.weight_parts + item * b.wave_lanes + group * kLanes : nullptr,
                          at_group(b.d, words.d, group),
                          at_group(b.d_lanes, words.d_lanes, group),
                          at_group(b.h, words.h, group)};
    for_activation(a.activation, [&]<ExpertActivation A>() { group_gradients<A>(a, x, s, to); });
  }
}

}  // namespace tileformer::TILEFORMER_UNIT
