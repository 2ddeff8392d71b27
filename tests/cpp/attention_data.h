// The tensors of an AttentionCase, each in guarded memory of its own, filled from a seed.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <utility>
#include <vector>

#include "elements.h"
#include "guarded_memory.h"
#include "ops/attention/cases.h"

namespace tileformer::test {

using attention::AttentionCase;
using attention::Layout;
using attention::Mask;
using attention::Values;

class AttentionData {
 public:
  AttentionArgs args;

  AttentionData(const AttentionCase& c, DType dtype, Edge edge = Edge::end, std::uint64_t seed = 1)
      : case_(c), dtype_(dtype), edge_(edge), random_(seed) {
    add_tensors();
    add_packing();
    add_ranges();
    add_mask();
    add_biases();
    args.scale = c.scale;
    args.causal = c.causal;
    args.window_left = c.window_left;
    args.window_right = c.window_right;
    args.softcap = c.softcap;
    args.dropout_p = c.dropout_p;
    args.dropout_seed = 0x0123456789abcdef + seed;
    args.dropout_offset = 0x100000007;  // both halves matter
  }

  // Makes out and lse unwritten again. False if memory between their elements had been written.
  bool clear_outputs() const {
    bool untouched = true;
    for (const auto& [view, memory] : {std::pair{&args.out, out_memory_}, {&args.lse, lse_memory_}}) {
      if (!*view) continue;
      for_each_index(*view, [&](const Index& at) {
        const std::int64_t size = static_cast<std::int64_t>(size_of(view->dtype));
        std::memset(static_cast<std::uint8_t*>(view->data) + offset_of(*view, at) * size, 0xFF,
                    static_cast<std::size_t>(size));
      });
      const auto* bytes = static_cast<const std::uint8_t*>(memory_[memory].data());
      untouched =
          untouched && std::all_of(bytes, bytes + memory_[memory].bytes(), [](auto b) { return b == 0xFF; });
    }
    return untouched;
  }

 private:
  using Sizes = std::array<std::int64_t, 4>;

  double normal() { return normal_(random_); }
  std::int64_t queries(std::int64_t n) const { return case_.packed() ? case_.query_lengths[n] : case_.seq_q; }
  std::int64_t keys(std::int64_t n) const { return case_.packed() ? case_.key_lengths[n] : case_.seq_k; }

  // Memory for exactly what the strides reach. Strides may be negative: the view starts where index 0 lies.
  TensorView allocate(DType dtype, int rank, const Sizes& shape, const Sizes& stride) {
    TensorView view;
    view.dtype = dtype;
    view.rank = rank;
    view.present = true;
    std::int64_t below = 0, above = 0;
    for (int i = 0; i < rank; ++i) {
      view.shape[i] = shape[i];
      view.stride[i] = stride[i];
      const std::int64_t reach = (shape[i] - 1) * stride[i];
      (reach < 0 ? below : above) += reach;
    }
    const std::int64_t count = view.elements() == 0 ? 0 : above - below + 1;
    memory_.emplace_back(static_cast<std::size_t>(count) * size_of(dtype), edge_);
    const std::int64_t start = count == 0 ? 0 : -below * static_cast<std::int64_t>(size_of(dtype));
    view.data = static_cast<std::uint8_t*>(memory_.back().data()) + start;
    return view;
  }

  TensorView allocate_dense(DType dtype, int rank, const Sizes& shape) {
    Sizes stride{};
    std::int64_t step = 1;
    for (int i = rank - 1; i >= 0; --i) {
      stride[i] = step;
      step *= shape[i];
    }
    return allocate(dtype, rank, shape, stride);
  }

  // [batch, heads, seq, dim]
  TensorView allocate_rows(const Sizes& shape, bool is_kv) {
    const auto [batch, heads, seq, dim] = shape;
    switch (case_.layout) {
      case Layout::bhsd: return allocate(dtype_, 4, shape, {heads * seq * dim, seq * dim, dim, 1});
      case Layout::reversed: return allocate(dtype_, 4, shape, {heads * seq * dim, seq * dim, -dim, 1});
      case Layout::padded: {
        const std::int64_t row = dim + 3, head = seq * row + 5;
        return allocate(dtype_, 4, shape, {heads * head + 1, head, row, 1});
      }
      case Layout::expanded_kv:
        if (is_kv) return allocate(dtype_, 4, shape, {0, 0, dim, 1});
        [[fallthrough]];
      case Layout::bshd: return allocate(dtype_, 4, shape, {seq * heads * dim, dim, heads * dim, 1});
    }
    std::abort();
  }

  void add_tensors() {
    const AttentionCase& c = case_;
    args.query = allocate_rows({c.batch, c.heads, c.seq_q, c.dim}, false);
    args.key = allocate_rows({c.batch, c.kv_heads, c.seq_k, c.dim}, true);
    args.value = allocate_rows({c.batch, c.kv_heads, c.seq_k, c.dim_v}, true);
    args.out = allocate_rows({c.batch, c.heads, c.seq_q, c.dim_v}, false);
    out_memory_ = memory_.size() - 1;
    if (c.lse) {
      const DType dtype = dtype_ == DType::f64 ? DType::f64 : DType::f32;
      const Sizes shape{c.batch, c.heads, c.seq_q};
      args.lse = c.layout == Layout::bshd ? allocate(dtype, 3, shape, {c.seq_q * c.heads, 1, c.heads})
                                          : allocate_dense(dtype, 3, shape);
      lse_memory_ = memory_.size() - 1;
    }
    for_each_index(args.query, [&](const Index& at) {
      set(args.query, at, c.values == Values::large ? 30 * normal() : normal());
    });
    for_each_index(args.key, [&](const Index& at) {
      const double grown = c.values == Values::growing ? 1 + static_cast<double>(at[2]) / 20 : 1;
      set(args.key, at, normal() * grown + (c.values == Values::shifted ? 2 : 0));
    });
    for_each_index(args.value, [&](const Index& at) { set(args.value, at, normal()); });
  }

  TensorView offsets_of(const std::vector<std::int64_t>& lengths, DType dtype) {
    const TensorView view = allocate_dense(dtype, 1, {static_cast<std::int64_t>(lengths.size()) + 1});
    std::int64_t offset = 0;
    set(view, {0}, 0);
    for (std::size_t i = 0; i < lengths.size(); ++i) {
      set(view, {static_cast<std::int64_t>(i) + 1}, static_cast<double>(offset += lengths[i]));
    }
    return view;
  }

  void add_packing() {
    if (!case_.packed()) return;
    args.cu_seqlens_query = offsets_of(case_.query_lengths, DType::i32);
    args.cu_seqlens_key = offsets_of(case_.key_lengths, DType::i64);
  }

  void add_ranges() {
    const std::int64_t n = case_.sequences();
    if (case_.key_range) {
      args.key_range = allocate_dense(DType::i32, 2, {n, 2});
      for (std::int64_t i = 0; i < n; ++i) {
        const std::int64_t k = keys(i);
        const std::int64_t ranges[3][2] = {{k / 5, k - k / 7}, {0, k / 2}, {k / 2, k / 2}};
        set(args.key_range, {i, 0}, static_cast<double>(ranges[i % 3][0]));
        set(args.key_range, {i, 1}, static_cast<double>(ranges[i % 3][1]));
      }
    }
    if (case_.query_offset) {
      args.query_offset = allocate_dense(DType::i32, 1, {n});
      for (std::int64_t i = 0; i < n; ++i) {
        const std::int64_t diagonals[] = {keys(i) - queries(i), 3, -5, keys(i) + 10, 0};
        set(args.query_offset, {i}, static_cast<double>(diagonals[i % 5]));
      }
    }
  }

  double mask_value(DType dtype, const Index& at) {
    const std::int64_t i = at[2], j = at[3];
    const double shown = dtype == DType::boolean ? 1 : normal();
    double hidden = dtype == DType::boolean ? 0 : -std::numeric_limits<double>::infinity();
    const double chance = std::uniform_real_distribution<double>()(random_);
    switch (case_.mask.content) {
      case Mask::Content::random: return chance < 0.7 ? shown : hidden;
      case Mask::Content::blocks: return (i / 20 + j / 110) % 2 == 0 && j % 70 != 69 ? shown : hidden;
      case Mask::Content::hidden: return hidden;
      case Mask::Content::lowest:
        if (dtype == DType::bf16) hidden = -0x1.fep127;
        if (dtype == DType::f16) hidden = -65504;
        if (dtype == DType::f32) hidden = std::numeric_limits<float>::lowest();
        return i % 5 != 0 && chance < 0.7 ? shown : hidden;
    }
    std::abort();
  }

  void add_mask() {
    const Mask& m = case_.mask;
    if (m.kind == Mask::Kind::none) return;
    const DType dtype = m.kind == Mask::Kind::boolean ? DType::boolean
                        : m.kind == Mask::Kind::f32   ? DType::f32
                        : m.kind == Mask::Kind::f64   ? DType::f64
                                                      : dtype_;
    Sizes full{case_.sequences(), case_.heads, case_.seq_q, case_.seq_k};
    if (case_.packed()) {
      full[2] = *std::max_element(case_.query_lengths.begin(), case_.query_lengths.end());
      full[3] = *std::max_element(case_.key_lengths.begin(), case_.key_lengths.end());
    }
    const bool varies[4] = {m.batch, m.heads, m.queries, m.keys};
    Sizes shape = full;
    for (int i = 0; i < 4; ++i) {
      if (!varies[i]) shape[i] = 1;
    }
    const std::int64_t q = shape[2], k = shape[3];
    switch (m.order) {
      case Mask::Order::transposed:
        args.attn_mask = allocate(dtype, 4, shape, {shape[1] * q * k, q * k, 1, q});
        break;
      case Mask::Order::sparse:
        args.attn_mask =
            allocate(dtype, 4, shape, {shape[1] * q * (3 * k + 1), q * (3 * k + 1), 3 * k + 1, 3});
        break;
      default: args.attn_mask = allocate_dense(dtype, 4, shape);
    }
    for_each_index(args.attn_mask, [&](const Index& at) { set(args.attn_mask, at, mask_value(dtype, at)); });
    if (m.order != Mask::Order::expanded) return;
    for (int i = 0; i < 4; ++i) {
      if (varies[i]) continue;
      args.attn_mask.shape[i] = full[i];
      args.attn_mask.stride[i] = 0;
    }
  }

  void add_biases() {
    const std::int64_t heads = case_.heads;
    if (case_.alibi) {
      args.alibi_slopes = case_.alibi_per_sequence ? allocate_dense(DType::f32, 2, {case_.sequences(), heads})
                                                   : allocate_dense(DType::f32, 1, {heads});
      for_each_index(args.alibi_slopes, [&](const Index& at) {
        set(args.alibi_slopes, at, std::exp2(-static_cast<double>(at[0] + at[1]) / 2 - 1));
      });
    }
    if (case_.sinks) {
      args.sinks = allocate_dense(dtype_, 1, {heads});
      for_each_index(args.sinks, [&](const Index& at) { set(args.sinks, at, normal() + 1); });
    }
  }

  AttentionCase case_;
  DType dtype_;
  Edge edge_;
  std::mt19937_64 random_;
  std::normal_distribution<double> normal_;
  std::vector<GuardedMemory> memory_;
  std::size_t out_memory_ = 0, lse_memory_ = 0;  // indices into memory_
};

}  // namespace tileformer::test
