// The error that a plain computation in the same precision makes: whole rows of scores in fp32, as torch's
// math path does, with probabilities and output rounded to the dtype. The kernels are measured against this
// error.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "accuracy.h"
#include "attention_visible.h"
#include "exact_attention.h"
#include "tileformer/philox.h"

namespace tileformer::test {

// One query head of one sequence.
class SamePrecisionHead {
 public:
  SamePrecisionHead(const AttentionArgs& args, std::int64_t sequence, std::int64_t head)
      : args_(args), n_(sequence), h_(head), b_(args.cu_seqlens_query ? 0 : sequence) {
    const Span keys = keys_of(args, n_);
    const std::int64_t kv_head = h_ / (args.query.shape[1] / args.key.shape[1]);
    for (std::int64_t j = 0; j < keys.count; ++j) {
      const Index at = place_of_key(args, n_, kv_head, j);
      k_.push_back(row(args.key, at, args.key_scale ? get(args.key_scale, at) : 1));
      v_.push_back(row(args.value, at, args.value_scale ? get(args.value_scale, at) : 1));
    }
  }

  // out and lse: fp64 views of the shapes in args.
  void run(const TensorView& out, const TensorView& lse) const {
    const Span queries = queries_of(args_, n_);
    for (std::int64_t i = 0; i < queries.count; ++i) {
      const Softmax of_row = softmax(i, row(args_.query, {b_, h_, queries.first + i}));
      Row o(static_cast<std::size_t>(args_.value.shape[3]));
      for (std::size_t j = 0; j < k_.size(); ++j) {
        if (of_row.p[j] == 0) continue;
        const float weight = static_cast<float>(rounded(of_row.p[j], args_.query.dtype)) * dropout(i, j);
        for (std::size_t d = 0; d < o.size(); ++d) o[d] += weight * v_[j][d];
      }
      for (std::size_t d = 0; d < o.size(); ++d) {
        set(out, {b_, h_, queries.first + i, static_cast<std::int64_t>(d)}, rounded(o[d], args_.query.dtype));
      }
      set(lse, {b_, h_, queries.first + i}, of_row.lse);
    }
  }

 protected:
  using Row = std::vector<float>;

  static Row row(const TensorView& view, Index at, double factor = 1) {
    Row x(static_cast<std::size_t>(view.shape[3]));
    for (std::size_t d = 0; d < x.size(); ++d) {
      at[3] = static_cast<std::int64_t>(d);
      x[d] = static_cast<float>(factor * get(view, at));
    }
    return x;
  }

  float scale() const {
    return static_cast<float>(args_.scale.value_or(1 / std::sqrt(static_cast<double>(args_.query.shape[3]))));
  }

  // Of one row; zeros where it sees nothing.
  struct Softmax {
    Row p;
    Row cap_slope;    // the derivative of the softcap, if there is one
    float sink, lse;  // sink: its share
  };

  Softmax softmax(std::int64_t i, const Row& q) const {
    Softmax of_row{scores(i, q), {}, 0, 0};
    if (args_.softcap > 0) of_row.cap_slope = cap_slopes(q);
    const float sink = args_.sinks ? static_cast<float>(get(args_.sinks, {h_})) : -INFINITY;
    float m = sink;
    for (float x : of_row.p) m = std::max(m, x);
    if (m == -INFINITY) m = 0;
    float l = of_row.sink = std::exp(sink - m);
    for (float& x : of_row.p) l += x = std::exp(x - m);
    of_row.lse = m + std::log(l);
    if (l == 0) return of_row;
    for (float& x : of_row.p) x /= l;
    of_row.sink /= l;
    return of_row;
  }

  float dropout(std::int64_t i, std::size_t j) const {
    if (args_.dropout_p == 0) return 1;
    const auto low = [](std::uint64_t x) { return static_cast<std::uint32_t>(x); };
    const std::uint64_t seed = args_.dropout_seed, offset = args_.dropout_offset;
    const PhiloxWords bits = philox4x32(low(j / 4), low(static_cast<std::uint64_t>(i)),
                                        low(static_cast<std::uint64_t>(n_ * args_.query.shape[1] + h_)),
                                        low(offset), low(seed), low(seed >> 32) ^ low(offset >> 32));
    return bits.word[j % 4] < dropout_threshold(args_.dropout_p) ? 0 : 1 / (1 - args_.dropout_p);
  }

  const AttentionArgs& args_;
  std::int64_t n_, h_, b_;
  std::vector<Row> k_, v_;

 private:
  float raw_score(const Row& q, std::size_t j) const {
    float x = 0;
    for (std::size_t d = 0; d < q.size(); ++d) x += q[d] * k_[j][d];
    return scale() * x;
  }

  // -inf where the row sees nothing.
  Row scores(std::int64_t i, const Row& q) const {
    const float softcap = static_cast<float>(args_.softcap);
    const TensorView& slopes = args_.alibi_slopes;
    const double slope = !slopes ? 0 : slopes.rank == 1 ? get(slopes, {h_}) : get(slopes, {n_, h_});
    Row s(k_.size(), -INFINITY);
    for (std::size_t j = 0; j < s.size(); ++j) {
      const Index at{n_, h_, i, static_cast<std::int64_t>(j)};
      if (!sees(args_, at)) continue;
      float x = raw_score(q, j);
      if (softcap > 0) x = softcap * std::tanh(x / softcap);
      if (args_.attn_mask && args_.attn_mask.dtype != DType::boolean)
        x += static_cast<float>(mask_at(args_, at));
      s[j] = x - static_cast<float>(slope) * static_cast<float>(std::abs(i + diagonal_of(args_, n_) - at[3]));
    }
    return s;
  }

  Row cap_slopes(const Row& q) const {
    Row slopes;
    for (std::size_t j = 0; j < k_.size(); ++j) {
      const float t = std::tanh(raw_score(q, j) / static_cast<float>(args_.softcap));
      slopes.push_back(1 - t * t);
    }
    return slopes;
  }
};

inline AttentionResult same_precision_attention(const AttentionArgs& args) {
  std::vector<double> out(static_cast<std::size_t>(args.out.elements()));
  const auto [batch, heads, seq, dim_v] = args.out.shape;
  std::vector<double> lse(static_cast<std::size_t>(batch * heads * seq));
  const TensorView out_view = TensorView::dense(out.data(), DType::f64, {batch, heads, seq, dim_v});
  const TensorView lse_view = TensorView::dense(lse.data(), DType::f64, {batch, heads, seq});
  for (std::int64_t n = 0; n < sequences_of(args); ++n) {
    for (std::int64_t h = 0; h < heads; ++h) SamePrecisionHead(args, n, h).run(out_view, lse_view);
  }
  return {out, args.lse ? lse : std::vector<double>{}};
}

}  // namespace tileformer::test
