// The error that a plain computation of experts in the same precision makes, one pair after the other: sums
// in fp32, with h, the gradients of gate and up, and weight * grad_out rounded to the dtype before they are
// multiplied, activations rounded to 16 bits where they meet codes, and results rounded once. (torch rounds
// gate, up and each expert's output as well, which would make this yardstick a longer one.)
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <vector>

#include "accuracy.h"
#include "fused_experts_data.h"
#include "ops/moe/experts/reference.h"

namespace tileformer::test {

// Sums in fp32, and for each the squares of its terms, by their sizes before anything cancelled: where terms
// cancel, their rounding stays, so that the least error to ask for is some roundings of their root.
struct ExpertsSums {
  std::vector<float> sum, squares;

  ExpertsSums() = default;
  explicit ExpertsSums(std::int64_t count) : sum(std::size_t(count)), squares(std::size_t(count)) {}
  void add(std::int64_t i, float term, float size) {
    sum[std::size_t(i)] += term;
    squares[std::size_t(i)] += size * size;
  }
  std::vector<double> rounded_to(DType dtype) const {
    std::vector<double> all;
    for (float x : sum) all.push_back(rounded(x, dtype));
    return all;
  }
  // rms of the terms of a sum
  double terms() const {
    double total = 0;
    for (float x : squares) total += x;
    return sum.empty() ? 0 : std::sqrt(total / double(sum.size()));
  }
};

class SamePrecisionExperts {
 public:
  ExpertsSums out;
  std::array<ExpertsSums, kExpertsGradients> gradients;

  explicit SamePrecisionExperts(const FusedExpertsArgs& args) : f_(args) {
    out = ExpertsSums(args.hidden.elements());
    visit_pairs([&](const Pair& p) { add_out(p); });
  }
  explicit SamePrecisionExperts(const FusedExpertsBackwardArgs& args)
      : f_(args.forward), grad_out_(args.grad_out) {
    for (int i = 0; i < kExpertsGradients; ++i) {
      const TensorView& view = differentiated_view(f_, i);
      gradients[i] = ExpertsSums(view ? view.elements() : 0);
    }
    visit_pairs([&](const Pair& p) { add_gradients(p); });
  }

 private:
  using Row = std::vector<float>;
  using Matrix = moe::reference::Matrix;

  struct Pair {
    std::int64_t expert, token, slot;
    float weight;
    const Matrix &gate_up, &down;
    Row x, gu, gu_size;  // gates first; size: root of the squares of the terms
  };

  static Row narrow(const moe::reference::Row& row) { return Row(row.begin(), row.end()); }

  // Codes are multiplied as weights of the dtype of hidden.
  Matrix matrix(const ExpertWeights& w, std::int64_t e, std::int64_t rows, std::int64_t columns) const {
    Matrix m(w, e, rows, columns);
    if (!is_floating(w.weight.dtype))
      for (auto& row : m.w)
        for (double& x : row) x = rounded(x, f_.hidden.dtype);
    return m;
  }

  // A row as it is multiplied with the weights: with codes as whole numbers of 15 bits and a sign.
  static Row multiplied(Row row, const ExpertWeights& w) {
    if (is_floating(w.weight.dtype)) return row;
    float largest = 0;
    for (float x : row) largest = std::max(largest, std::abs(x));
    if (largest == 0) return row;
    const float unit = largest / 32767;
    for (float& x : row) x = unit * std::nearbyint(x / unit);
    return row;
  }

  template <class Visit>
  void visit_pairs(Visit visit) const {
    const std::int64_t hidden = f_.hidden.shape[1], rows = f_.gate_up.weight.shape[1];
    std::int64_t index = 0;
    moe::reference::Pairs sorted;
    if (!sorted.sort(f_.experts, f_.gate_up.weight.shape[0])) return;
    for (std::int64_t e = 0; e < f_.gate_up.weight.shape[0]; ++e) {
      const auto pairs = sorted.of(e);
      if (pairs.empty()) continue;
      const Matrix gate_up = matrix(f_.gate_up, e, rows, hidden), down = matrix(f_.down, e, hidden, rows / 2);
      for (const auto [t, j] : pairs) {
        Pair p{e, t, j, static_cast<float>(get(f_.weights, {t, j})), gate_up, down, {}, {}, {}};
        p.x = multiplied(narrow(moe::reference::row_of(f_.hidden, t)), f_.gate_up);
        auto gu = moe::reference::Row(std::size_t(rows)), size = gu;
        for (std::int64_t i = 0; i < rows; ++i) {
          float sum = static_cast<float>(gate_up.bias[i]), squares = sum * sum;
          for (std::int64_t c = 0; c < hidden; ++c) {
            const float term = static_cast<float>(gate_up.w[i][c]) * p.x[c];
            sum += term;
            squares += term * term;
          }
          gu[i] = sum;
          size[i] = std::sqrt(squares);
        }
        p.gu = narrow(moe::reference::gates_first(gu, f_.interleaved));
        p.gu_size = narrow(moe::reference::gates_first(size, f_.interleaved));
        if (grad_out_ && f_.gate_up_out) p.gu = narrow(moe::reference::row_of(f_.gate_up_out, index));
        ++index;
        visit(p);
      }
    }
  }

  float to_dtype(float x) const { return static_cast<float>(rounded(x, f_.hidden.dtype)); }

  // h and its derivatives, and their sizes.
  struct Activated {
    float h, by_gate, by_up, h_size, by_gate_size, by_up_size;
  };
  Activated activate(const Pair& p, std::int64_t i) const {
    const auto inter = static_cast<std::int64_t>(p.gu.size()) / 2;
    const float gate = p.gu[i], up = p.gu[inter + i], gate_size = p.gu_size[i],
                up_size = p.gu_size[inter + i];
    const auto a = moe::reference::activate(f_, gate, up);
    const auto h = static_cast<float>(a.h), by_gate = static_cast<float>(a.by_gate),
               by_up = static_cast<float>(a.by_up);
    return {h,
            by_gate,
            by_up,
            std::abs(h) + std::abs(by_gate) * gate_size + std::abs(by_up) * up_size,
            std::abs(by_gate) + std::abs(up) * gate_size + up_size,
            std::abs(by_up) + gate_size};
  }

  void add_out(const Pair& p) {
    const auto inter = static_cast<std::int64_t>(p.gu.size()) / 2,
               hidden = static_cast<std::int64_t>(p.x.size());
    Row h = Row(std::size_t(inter)), h_size = h;
    for (std::int64_t i = 0; i < inter; ++i) {
      const Activated a = activate(p, i);
      h[i] = to_dtype(a.h);
      h_size[i] = a.h_size;
    }
    h = multiplied(h, f_.down);
    for (std::int64_t c = 0; c < hidden; ++c) {
      float y = static_cast<float>(p.down.bias[c]), squares = y * y;
      for (std::int64_t i = 0; i < inter; ++i) {
        const float w = static_cast<float>(p.down.w[c][i]);
        y += w * h[i];
        squares += w * h_size[i] * w * h_size[i];
      }
      out.add(p.token * hidden + c, p.weight * y, p.weight * std::sqrt(squares));
    }
  }

  void add_gradients(const Pair& p) {
    const auto inter = static_cast<std::int64_t>(p.gu.size()) / 2,
               hidden = static_cast<std::int64_t>(p.x.size());
    const std::int64_t rows = 2 * inter, k = f_.experts.shape[1];
    const Row dy = narrow(moe::reference::row_of(grad_out_, p.token));
    Row h = Row(std::size_t(inter)), d = Row(std::size_t(rows)), h_size = h, d_size = d;
    const std::int64_t at_pair = p.token * k + p.slot;
    for (std::int64_t i = 0; i < inter; ++i) {
      float q = 0, squares = 0;
      for (std::int64_t c = 0; c < hidden; ++c) {
        const float term = static_cast<float>(p.down.w[c][i]) * dy[c];
        q += term;
        squares += term * term;
      }
      const float q_size = std::sqrt(squares), weight = std::abs(p.weight);
      const Activated a = activate(p, i);
      gradients[kGradWeights].add(at_pair, q * a.h, q_size * a.h_size);
      h[i] = to_dtype(a.h);
      h_size[i] = a.h_size;
      const std::int64_t gate = f_.interleaved ? 2 * i : i, up = f_.interleaved ? 2 * i + 1 : inter + i;
      d[gate] = to_dtype(p.weight * q * a.by_gate);
      d[up] = to_dtype(p.weight * q * a.by_up);
      d_size[gate] = weight * q_size * a.by_gate_size;
      d_size[up] = weight * q_size * a.by_up_size;
    }
    for (std::int64_t i = 0; i < rows; ++i) {
      for (std::int64_t c = 0; c < hidden; ++c) {
        const float w = static_cast<float>(p.gate_up.w[i][c]);
        gradients[kGradHidden].add(p.token * hidden + c, w * d[i], w * d_size[i]);
        gradients[kGradGateUp].add((p.expert * rows + i) * hidden + c, d[i] * p.x[c], d_size[i] * p.x[c]);
      }
      if (f_.gate_up.bias) gradients[kGradGateUpBias].add(p.expert * rows + i, d[i], d_size[i]);
    }
    for (std::int64_t c = 0; c < hidden; ++c) {
      const float weighted = to_dtype(p.weight * dy[c]);
      for (std::int64_t i = 0; i < inter; ++i)
        gradients[kGradDown].add((p.expert * hidden + c) * inter + i, weighted * h[i], weighted * h_size[i]);
      const float bias = dy[c] * static_cast<float>(p.down.bias[c]);
      gradients[kGradWeights].add(at_pair, bias, bias);
      if (f_.down.bias) gradients[kGradDownBias].add(p.expert * hidden + c, weighted, weighted);
    }
  }

  const FusedExpertsArgs& f_;
  TensorView grad_out_;
};

}  // namespace tileformer::test
