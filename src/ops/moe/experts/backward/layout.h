// Where things stand: D in memory, the buffers of a wave, those of a worker. Included by kernels only.
#pragma once

#include "ops/moe/common/slice_product.h"
#include "ops/moe/experts/backward/weight_gradient.h"

namespace tileformer::TILEFORMER_UNIT {

using moe::BackwardKernelArgs;
using moe::GroupRun;
using moe::GroupWords;
using moe::KernelArgs;
using moe::Share;

// Where rows of one element per word are packed lanes as well.
inline constexpr bool kRowsAreLanes = kElementsPerWord == 1;

// gate_up's rows, as they are stored: all of them, or gates and ups.
TF_INLINE int parts_of(const KernelArgs& a) { return a.interleaved ? 1 : 2; }
TF_INLINE std::int64_t part_size(const KernelArgs& a) { return a.interleaved ? 2 * a.inter : a.inter; }
// Words from part to part in D.
TF_INLINE std::int64_t d_part_words(const KernelArgs& a) { return slice_rows(part_size(a)) * kLaneWords; }

TF_INLINE int groups_of(const Share& s) { return static_cast<int>(ceil_div(s.pairs, kLanes)); }
TF_INLINE int lanes_of(const Share& s, int group) { return min_of(kLanes, s.pairs - group * kLanes); }
// Whether the last group of a run of groups has no more than half of the lanes.
TF_INLINE bool ends_half(const Share& s, const GroupRun& r) {
  return lanes_of(s, r.first + r.groups - 1) <= kLanes / 2;
}

TF_NOINLINE GroupWords group_words(const BackwardKernelArgs& b) {
  const KernelArgs& a = b.forward;
  const bool rows = b.grad_gate_up.data || b.grad_gate_up_bias.data;
  const std::int64_t steps = ceil_div(a.hidden_dim, kLanes) * kLaneWords * kLanes;
  GroupWords w{};
  if (!a.gate_up_out) w.hidden_lanes = query_words(a.hidden_dim);
  if (b.needs_q) w.grad_lanes = query_words(a.hidden_dim);
  if (b.grad_gate_up.data) w.hidden_steps = steps;
  if (b.grad_down.data) w.grad_steps = steps;
  if (rows || (kRowsAreLanes && b.grad_hidden)) w.d = spread_stride(parts_of(a) * d_part_words(a));
  if (!kRowsAreLanes && b.grad_hidden) w.d_lanes = parts_of(a) * query_words(part_size(a));
  if (b.grad_down.data) w.h = spread_stride(slice_rows(a.inter) * kLaneWords);
  return w;
}

TF_INLINE Word* at_group(void* buffer, std::int64_t words, std::int64_t group) {
  return buffer ? static_cast<Word*>(buffer) + group * words : nullptr;
}

// Floats of a row of the sums of an expert's weights; the last slice is of the bias.
TF_INLINE std::int64_t expert_sum_stride(const KernelArgs& a) {
  return round_up(a.hidden_dim, kLanes) + kLanes + 16;
}

struct Blocks {
  std::int64_t of_part, gate_up, down;
  TF_MEMBER explicit Blocks(const BackwardKernelArgs& b)
      : of_part(ceil_div(part_size(b.forward), kBlockRows)),
        gate_up(b.grad_gate_up.data || b.grad_gate_up_bias.data ? parts_of(b.forward) * of_part : 0),
        down(b.grad_down.data ? ceil_div(b.forward.inter, kBlockRows) : 0) {}
};

TF_NOINLINE std::int64_t expert_sum_floats(const BackwardKernelArgs& b) {
  const Blocks blocks(b);
  return (blocks.gate_up + blocks.down) * kBlockRows * expert_sum_stride(b.forward);
}

// A worker's buffers.
struct BackwardScratch {
  static constexpr std::int64_t kSumStride = kBlockColumns + 16;
  Word *panel, *ones;
  float *c, *gate_up, *gate, *up, *bias;
  float* sums;
  std::size_t bytes;

  TF_MEMBER explicit BackwardScratch(const BackwardKernelArgs& b, char* base = nullptr) {
    const KernelArgs& a = b.forward;
    std::size_t at = 0;
    const auto take = [&](std::int64_t size) __attribute__((always_inline)) {
      char* p = base + at;
      at += (static_cast<std::size_t>(size) + 63) / 64 * 64 + 64;
      return p;
    };
    const auto floats = [&](std::int64_t n) __attribute__((always_inline)) {
      return reinterpret_cast<float*>(take(sizeof(float) * n));
    };
    const std::int64_t inter_rows = slice_rows(a.inter_slice), both = 2 * inter_rows;
    const std::int64_t rows = max_of(inter_rows, slice_rows(a.hidden_slice));
    const std::int64_t groups = max_of<std::int64_t>(a.max_groups, 1);
    panel = reinterpret_cast<Word*>(take(sizeof(Word) * 2 * panel_words(rows)));
    ones = reinterpret_cast<Word*>(take(sizeof(Word) * kLaneWords * kLanes));
    c = floats(rows * kLanes * groups);
    gate_up = floats(a.gate_up_out ? 0 : both * kLanes * groups);
    gate = floats(inter_rows * kLanes);
    up = floats(inter_rows * kLanes);
    bias = floats(max_of(both, slice_rows(a.hidden_slice)) + kVecLanes);
    sums = floats(kBlockRows * kSumStride);
    bytes = (at + 4095) / 4096 * 4096;
  }
};

template <class T>
TF_INLINE const typename T::Element* hidden_row(const KernelArgs& a, std::int64_t pair) {
  return static_cast<const typename T::Element*>(a.hidden) + a.pair_token[pair] * a.hidden_stride;
}
template <class T>
TF_INLINE const typename T::Element* grad_row(const BackwardKernelArgs& b, std::int64_t pair) {
  return static_cast<const typename T::Element*>(b.grad_out) + b.forward.pair_token[pair] * b.grad_out_stride;
}

}  // namespace tileformer::TILEFORMER_UNIT
