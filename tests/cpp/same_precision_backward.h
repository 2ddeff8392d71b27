// The error that a plain backward in the same precision makes: whole rows of S, dP and dS in fp32, as torch's
// math path does, with P and dS rounded to the dtype before they are multiplied, and gradients rounded once.
// (Torch rounds S and dP to the dtype as well, which would make this yardstick a longer one.)
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <vector>

#include "attention_backward_data.h"
#include "same_precision_attention.h"

namespace tileformer::test {

struct SamePrecisionGradients {
  Gradients gradients;
  // The rms of the sums of magnitudes that each gradient comes from, dot products counted by the lengths of
  // their vectors. Where terms cancel, their rounding stays: the least error that can be asked for is some
  // roundings of this.
  std::array<double, kGradients> terms{};
  double lse = 0;  // rms, of rows that are not hidden as a whole
};

// Adds up the gradients of one query head of one sequence after the other, in fp32.
class GradientSums {
 public:
  explicit GradientSums(const AttentionBackwardArgs& args) : args_(args) {
    for (int i = 0; i < kGradients; ++i) {
      const TensorView& view = gradient_view(args, i);
      sums_[i].resize(static_cast<std::size_t>(view ? view.elements() : 0));
      terms_[i].resize(sums_[i].size() / row_size(i));
    }
  }

  // The sums from [at] on; dimensions of size 1 repeat.
  float* sums(int gradient, const Index& at) { return sums_[gradient].data() + index(gradient, at); }
  // Of the row of [at]; of the element, in mask and sinks.
  float& terms(int gradient, const Index& at) {
    return terms_[gradient][index(gradient, at) / row_size(gradient)];
  }

  SamePrecisionGradients result(float scale) const {
    SamePrecisionGradients r;
    for (int i = 0; i < kGradients; ++i) {
      const TensorView& view = gradient_view(args_, i);
      const float factor = i == kQuery || i == kKey ? scale : 1;
      for (float x : sums_[i]) r.gradients[i].push_back(rounded(factor * x, view.dtype));
      double squares = 0;
      for (float x : terms_[i]) squares += static_cast<double>(factor * x) * factor * x;
      if (!terms_[i].empty()) r.terms[i] = std::sqrt(squares / static_cast<double>(terms_[i].size()));
    }
    return r;
  }

 private:
  std::size_t row_size(int gradient) const {
    return gradient < kMask ? static_cast<std::size_t>(gradient_view(args_, gradient).shape[3]) : 1;
  }
  std::size_t index(int gradient, const Index& at) const {
    const TensorView& view = gradient_view(args_, gradient);
    std::int64_t i = 0;
    for (int n = 0; n < view.rank; ++n) i = i * view.shape[n] + (view.shape[n] == 1 ? 0 : at[n]);
    return static_cast<std::size_t>(i);
  }

  const AttentionBackwardArgs& args_;
  std::array<std::vector<float>, kGradients> sums_, terms_;
};

class SamePrecisionBackwardHead : public SamePrecisionHead {
 public:
  SamePrecisionBackwardHead(const AttentionBackwardArgs& args, std::int64_t sequence, std::int64_t head)
      : SamePrecisionHead(args.forward, sequence, head), all_(args) {
    for (const Row& k : k_) k_size_.push_back(rms_of(k));
    for (const Row& v : v_) v_size_.push_back(rms_of(v));
  }

  void add_to(GradientSums& to) const {
    const Span queries = queries_of(args_, n_), keys = keys_of(args_, n_);
    const std::int64_t kv_head = h_ / (args_.query.shape[1] / args_.key.shape[1]);
    const DType dtype = args_.query.dtype;
    for (std::int64_t i = 0; i < queries.count; ++i) {
      const Index at_row{b_, h_, queries.first + i, 0};
      const Row q = row(args_.query, at_row), out = row(args_.out, at_row), grad = row(all_.grad_out, at_row);
      const float q_size = rms_of(q), grad_size = rms_of(grad);
      const float grad_lse = all_.grad_lse ? static_cast<float>(get(all_.grad_lse, at_row)) : 0;
      const float row_term = dot(grad, out) - grad_lse;
      const float dot_size = grad_size * std::sqrt(static_cast<float>(grad.size()));
      const float row_term_size = dot_size * rms_of(out) + std::abs(grad_lse);
      const Softmax of_row = softmax(i, q);
      if (all_.grad_sinks) {
        *to.sums(kSinks, {h_}) -= of_row.sink * row_term;
        to.terms(kSinks, {h_}) += of_row.sink * row_term_size;
      }
      float *dq = to.sums(kQuery, at_row), &dq_terms = to.terms(kQuery, at_row);
      for (std::size_t j = 0; j < k_.size(); ++j) {
        if (of_row.p[j] == 0) continue;
        const Index at_key{b_, kv_head, keys.first + static_cast<std::int64_t>(j), 0};
        const float p = of_row.p[j], kept = dropout(i, j), dp = kept * dot(grad, v_[j]);
        const float ds = p * (dp - row_term), term = p * (kept * dot_size * v_size_[j] + row_term_size);
        if (all_.grad_mask) {
          const Index at{n_, h_, i, static_cast<std::int64_t>(j)};
          *to.sums(kMask, at) += ds;
          to.terms(kMask, at) += term;
        }
        const float dx =
            static_cast<float>(rounded(args_.softcap > 0 ? ds * of_row.cap_slope[j] : ds, dtype));
        add(dq, dx, k_[j]);
        add(to.sums(kKey, at_key), dx, q);
        add(to.sums(kValue, at_key), static_cast<float>(rounded(p, dtype)) * kept, grad);
        dq_terms += term * k_size_[j];
        to.terms(kKey, at_key) += term * q_size;
        to.terms(kValue, at_key) += p * kept * grad_size;
      }
    }
  }

 private:
  static float dot(const Row& a, const Row& b) {
    float sum = 0;
    for (std::size_t d = 0; d < a.size(); ++d) sum += a[d] * b[d];
    return sum;
  }
  static float rms_of(const Row& x) { return std::sqrt(dot(x, x) / static_cast<float>(x.size())); }
  static void add(float* sums, float weight, const Row& x) {
    for (std::size_t d = 0; d < x.size(); ++d) sums[d] += weight * x[d];
  }

  const AttentionBackwardArgs& all_;
  Row k_size_, v_size_;
};

// From the out of the same precision, and probabilities that were never rounded through lse.
inline SamePrecisionGradients same_precision_backward(AttentionBackwardArgs args) {
  AttentionResult forward = same_precision_attention(args.forward);
  forward.out.reserve(1);
  args.forward.out = dense_f64(forward.out.data(), args.forward.out);
  GradientSums sums(args);
  const AttentionArgs& f = args.forward;
  for (std::int64_t n = 0; n < sequences_of(f); ++n) {
    for (std::int64_t h = 0; h < f.query.shape[1]; ++h) SamePrecisionBackwardHead(args, n, h).add_to(sums);
  }
  const double scale = f.scale.value_or(1 / std::sqrt(static_cast<double>(f.query.shape[3])));
  SamePrecisionGradients result = sums.result(static_cast<float>(scale));
  std::erase_if(forward.lse, [](double lse) { return !(std::abs(lse) < 1000); });
  for (double lse : forward.lse) result.lse += lse * lse / static_cast<double>(forward.lse.size());
  result.lse = std::sqrt(result.lse);
  return result;
}

}  // namespace tileformer::test
