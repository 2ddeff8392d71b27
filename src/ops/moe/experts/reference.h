// What the reference loops of forward and backward share: weights of an expert in fp64, its pairs, and the
// activation with its derivatives.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numbers>
#include <span>
#include <vector>

#include "base/element.h"
#include "ops/moe/dispatch.h"
#include "tileformer/fused_experts.h"

namespace tileformer::moe::reference {

inline double load(const TensorView& view, std::int64_t a, std::int64_t b = 0, std::int64_t c = 0) {
  const std::int64_t index[3] = {a, b, c};
  std::int64_t offset = 0;
  for (int i = 0; i < view.rank; ++i) offset += view.shape[i] == 1 ? 0 : index[i] * view.stride[i];
  return load_element(view.data, view.dtype, offset);
}

inline void store(const TensorView& view, double x, std::int64_t a, std::int64_t b, std::int64_t c = 0) {
  const std::int64_t offset =
      a * view.stride[0] + b * view.stride[1] + (view.rank > 2 ? c * view.stride[2] : 0);
  store_element(view.data, view.dtype, offset, x);
}

using Row = std::vector<double>;

inline Row row_of(const TensorView& view, std::int64_t index) {
  Row row(static_cast<std::size_t>(view.shape[1]));
  for (std::size_t i = 0; i < row.size(); ++i) row[i] = load(view, index, std::int64_t(i));
  return row;
}

// A weight as it is multiplied: a code times its scale.
inline double weight_at(const ExpertWeights& w, std::int64_t expert, std::int64_t row, std::int64_t column) {
  switch (w.weight.dtype) {
    case DType::i8: return load(w.weight, expert, row, column) * load(w.scale, expert, row);
    case DType::i4x2: {
      const auto* bytes = static_cast<const std::uint8_t*>(w.weight.data);
      const int byte = bytes[expert * w.weight.stride[0] + row * w.weight.stride[1] + column / 2];
      const int nibble = column % 2 == 0 ? byte & 15 : byte >> 4;
      const std::int64_t group = 2 * w.weight.shape[2] / w.scale.shape[2];
      return (nibble < 8 ? nibble : nibble - 16) * load(w.scale, expert, row, column / group);
    }
    default: return load(w.weight, expert, row, column);
  }
}

// One expert's y = W x + bias.
struct Matrix {
  std::int64_t out, in;
  std::vector<Row> w;
  Row bias;

  Matrix(const ExpertWeights& weights, std::int64_t expert, std::int64_t rows, std::int64_t columns)
      : out(rows), in(columns), w(std::size_t(rows), Row(std::size_t(columns))), bias(std::size_t(rows)) {
    for (std::int64_t i = 0; i < out; ++i) {
      for (std::int64_t c = 0; c < in; ++c) w[i][c] = weight_at(weights, expert, i, c);
      bias[i] = weights.bias ? load(weights.bias, expert, i) : 0;
    }
  }
  Row times(const Row& x) const {
    Row y = bias;
    for (std::int64_t i = 0; i < out; ++i)
      for (std::int64_t c = 0; c < in; ++c) y[i] += w[i][c] * x[c];
    return y;
  }
};

// The pairs of each expert, by token, then slot.
class Pairs {
 public:
  // The first wrong index is the error.
  Status sort(const TensorView& experts, std::int64_t count) {
    offset_.resize(static_cast<std::size_t>(count) + 2);
    pair_.resize(static_cast<std::size_t>(experts.elements()));
    return dispatch(experts, count, {offset_.data(), pair_.data()});
  }
  std::span<const Pair> of(std::int64_t expert) const {
    return {pair_.data() + offset_[expert], pair_.data() + offset_[expert + 1]};
  }

 private:
  std::vector<std::int64_t> offset_;
  std::vector<Pair> pair_;
};

// Gates first, whatever the order of gate_up's rows.
inline Row gates_first(const Row& rows, bool interleaved) {
  if (!interleaved) return rows;
  const std::size_t inter = rows.size() / 2;
  Row sorted(rows.size());
  for (std::size_t i = 0; i < inter; ++i) {
    sorted[i] = rows[2 * i];
    sorted[inter + i] = rows[2 * i + 1];
  }
  return sorted;
}

struct Activated {
  double h, by_gate, by_up;  // the value and its derivatives
};

inline Activated activate(const FusedExpertsArgs& args, double gate, double up) {
  // act(gate) and its derivative, of the activations that are up * act(gate).
  const auto product = [&](double act, double slope) { return Activated{up * act, up * slope, act}; };
  switch (args.activation) {
    case ExpertActivation::silu: {
      const double s = 1 / (1 + std::exp(-gate));
      return product(gate * s, s * (1 + gate * (1 - s)));
    }
    case ExpertActivation::gelu: {
      const double normal = (1 + std::erf(gate / std::numbers::sqrt2)) / 2;
      const double density = std::exp(-gate * gate / 2) / std::sqrt(2 * std::numbers::pi);
      return product(gate * normal, normal + gate * density);
    }
    case ExpertActivation::gelu_tanh: {
      const double c = std::sqrt(2 / std::numbers::pi), cubic = 0.044715;
      const double t = std::tanh(c * (gate + cubic * gate * gate * gate));
      const double inner = c * (1 + 3 * cubic * gate * gate);
      return product(gate * (1 + t) / 2, (1 + t) / 2 + gate * (1 - t * t) * inner / 2);
    }
    case ExpertActivation::swiglu_oai: {
      const double g = std::min(gate, args.limit), u = std::clamp(up, -args.limit, args.limit);
      const double s = 1 / (1 + std::exp(-args.alpha * g)), act = g * s;
      const double slope = s * (1 + args.alpha * g * (1 - s));
      return {(u + 1) * act, gate > args.limit ? 0 : (u + 1) * slope, std::abs(up) > args.limit ? 0 : act};
    }
  }
  return {};
}

}  // namespace tileformer::moe::reference
