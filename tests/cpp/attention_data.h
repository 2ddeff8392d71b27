// The tensors of an AttentionCase, each in guarded memory of its own, filled from a seed.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <random>
#include <vector>

#include "attention_pages.h"
#include "guarded_tensors.h"
#include "ops/attention/cases.h"

namespace tileformer::test {

using attention::AttentionCase;
using attention::Layout;
using attention::Mask;
using attention::Values;

// Strides of [batch, heads, seq, dim] in a layout.
inline Sizes strides_in(Layout layout, const Sizes& shape, bool is_kv = false) {
  const auto [batch, heads, seq, dim] = shape;
  switch (layout) {
    case Layout::bhsd: return {heads * seq * dim, seq * dim, dim, 1};
    case Layout::reversed: return {heads * seq * dim, seq * dim, -dim, 1};
    case Layout::padded: {
      const std::int64_t row = dim + 3, head = seq * row + 5;
      return {heads * head + 1, head, row, 1};
    }
    case Layout::expanded_kv:
      if (is_kv) return {0, 0, dim, 1};
      [[fallthrough]];
    case Layout::bshd: return {seq * heads * dim, dim, heads * dim, 1};
  }
  std::abort();
}

// Of lse [batch, heads, seq].
inline Sizes lse_strides_in(Layout layout, const Sizes& shape) {
  return layout == Layout::bshd ? Sizes{shape[2] * shape[1], 1, shape[1]} : dense_strides(3, shape);
}

class AttentionData {
 public:
  AttentionArgs args;

  AttentionData(const AttentionCase& c, DType dtype, Edge edge = Edge::end, std::uint64_t seed = 1)
      : case_(c), dtype_(dtype), tensors_(edge), random_(seed) {
    add_query();
    if (c.paged())
      add_pages();
    else
      add_keys();
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
  bool clear_outputs() const { return tensors_.clear_outputs(); }

 private:
  double normal() { return normal_(random_); }

  TensorView allocate_rows(DType dtype, const Sizes& shape, bool is_kv) {
    return tensors_.allocate(dtype, 4, shape, strides_in(case_.layout, shape, is_kv));
  }

  void add_query() {
    const AttentionCase& c = case_;
    args.query = allocate_rows(dtype_, {c.batch, c.heads, c.seq_q, c.dim}, false);
    const Sizes out{c.batch, c.heads, c.seq_q, c.dim_v}, lse{c.batch, c.heads, c.seq_q};
    args.out = tensors_.allocate_output(dtype_, 4, out, strides_in(c.layout, out));
    if (c.lse) {
      const DType dtype = dtype_ == DType::f64 ? DType::f64 : DType::f32;
      args.lse = tensors_.allocate_output(dtype, 3, lse, lse_strides_in(c.layout, lse));
    }
    for_each_index(args.query, [&](const Index& at) {
      set(args.query, at, c.values == Values::large ? 30 * normal() : normal());
    });
  }

  double key_value(std::int64_t row) {
    const double grown = case_.values == Values::growing ? 1 + static_cast<double>(row) / 20 : 1;
    return normal() * grown + (case_.values == Values::shifted ? 2 : 0);
  }

  void add_keys() {
    const AttentionCase& c = case_;
    args.key = allocate_rows(dtype_, {c.batch, c.kv_heads, c.seq_k, c.dim}, true);
    args.value = allocate_rows(dtype_, {c.batch, c.kv_heads, c.seq_k, c.dim_v}, true);
    for_each_index(args.key, [&](const Index& at) { set(args.key, at, key_value(at[2])); });
    for_each_index(args.value, [&](const Index& at) { set(args.value, at, normal()); });
  }

  // A pool and, of codes, its scales. Where no sequence has a key it stays as memory is made: NaN, and codes
  // whose scale is NaN.
  TensorView add_pool(const Pages& pages, DType dtype, std::int64_t dim, bool is_key, TensorView* scale) {
    const AttentionCase& c = case_;
    const TensorView pool =
        allocate_rows(dtype, {pages.count(), c.kv_heads, c.page_size, dim}, /*is_kv=*/true);
    if (is_quantized(dtype)) {
      *scale = tensors_.allocate(DType::f32, 3, {pages.count(), c.kv_heads, c.page_size},
                                 lse_strides_in(c.layout, {pages.count(), c.kv_heads, c.page_size}));
      for_each_index(*scale, [&](const Index& at) {
        if (pages.used(at[0], at[2])) set(*scale, at, scale_of_codes(dtype, random_));
      });
    }
    for_each_index(pool, [&](const Index& at) {
      if (!pages.used(at[0], at[2])) return;
      double x = is_key ? key_value(at[0]) : normal();
      if (is_quantized(dtype)) x /= get(*scale, {at[0], at[1], at[2]});
      set(pool, at, dtype == DType::i8 ? std::clamp(x, -127.0, 127.0) : x);
    });
    return pool;
  }

  void add_pages() {
    const AttentionCase& c = case_;
    const Pages pages(c, random_);
    args.block_table = pages.table(tensors_);
    args.key_lengths = tensors_.allocate_dense(DType::i32, 1, {c.sequences()});
    for (std::int64_t n = 0; n < c.sequences(); ++n)
      set(args.key_lengths, {n}, static_cast<double>(c.key_lengths[n]));
    args.key = add_pool(pages, c.key_dtype.value_or(dtype_), c.dim, true, &args.key_scale);
    if (c.value_in_key) {
      args.value = args.key;
      args.value.shape[3] = c.dim_v;
      args.value_scale = args.key_scale;
    } else {
      args.value = add_pool(pages, c.value_dtype.value_or(dtype_), c.dim_v, false, &args.value_scale);
    }
  }

  TensorView offsets_of(const std::vector<std::int64_t>& lengths, DType dtype) {
    const TensorView view =
        tensors_.allocate_dense(dtype, 1, {static_cast<std::int64_t>(lengths.size()) + 1});
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
    if (!case_.paged()) args.cu_seqlens_key = offsets_of(case_.key_lengths, DType::i64);
  }

  void add_ranges() {
    const std::int64_t n = case_.sequences();
    if (case_.key_range) {
      args.key_range = tensors_.allocate_dense(DType::i32, 2, {n, 2});
      for (std::int64_t i = 0; i < n; ++i) {
        const std::int64_t k = case_.keys_of(i);
        const std::int64_t ranges[3][2] = {{k / 5, k - k / 7}, {0, k / 2}, {k / 2, k / 2}};
        set(args.key_range, {i, 0}, static_cast<double>(ranges[i % 3][0]));
        set(args.key_range, {i, 1}, static_cast<double>(ranges[i % 3][1]));
      }
    }
    if (case_.query_offset) {
      args.query_offset = tensors_.allocate_dense(DType::i32, 1, {n});
      for (std::int64_t i = 0; i < n; ++i) {
        const std::int64_t diagonals[] = {case_.keys_of(i) - case_.queries_of(i), 3, -5,
                                          case_.keys_of(i) + 10, 0};
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
    if (case_.packed()) full[2] = full[3] = 0;
    for (std::int64_t n = 0; n < case_.sequences(); ++n) {
      full[2] = std::max(full[2], case_.queries_of(n));
      full[3] = std::max(full[3], case_.keys_of(n));
    }
    const bool varies[4] = {m.batch, m.heads, m.queries, m.keys};
    Sizes shape = full;
    for (int i = 0; i < 4; ++i) {
      if (!varies[i]) shape[i] = 1;
    }
    const std::int64_t q = shape[2], k = shape[3];
    switch (m.order) {
      case Mask::Order::transposed:
        args.attn_mask = tensors_.allocate(dtype, 4, shape, {shape[1] * q * k, q * k, 1, q});
        break;
      case Mask::Order::sparse:
        args.attn_mask =
            tensors_.allocate(dtype, 4, shape, {shape[1] * q * (3 * k + 1), q * (3 * k + 1), 3 * k + 1, 3});
        break;
      default: args.attn_mask = tensors_.allocate_dense(dtype, 4, shape);
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
      args.alibi_slopes = case_.alibi_per_sequence
                              ? tensors_.allocate_dense(DType::f32, 2, {case_.sequences(), heads})
                              : tensors_.allocate_dense(DType::f32, 1, {heads});
      for_each_index(args.alibi_slopes, [&](const Index& at) {
        set(args.alibi_slopes, at, std::exp2(-static_cast<double>(at[0] + at[1]) / 2 - 1));
      });
    }
    if (case_.sinks) {
      args.sinks = tensors_.allocate_dense(dtype_, 1, {heads});
      for_each_index(args.sinks, [&](const Index& at) { set(args.sinks, at, normal() + 1); });
    }
  }

  AttentionCase case_;
  DType dtype_;
  GuardedTensors tensors_;
  std::mt19937_64 random_;
  std::normal_distribution<double> normal_;
};

}  // namespace tileformer::test
