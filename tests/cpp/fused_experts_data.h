// The tensors of an ExpertsCase, each in guarded memory of its own, filled from a seed. What must have no
// influence is NaN: gaps, weights of experts without tokens, routing weights of slots that name no expert.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "guarded_tensors.h"
#include "ops/moe/experts/case_table.h"
#include "tileformer/fused_experts_backward.h"

namespace tileformer::test {

using moe::ExpertsCase;
using moe::Routing;

class ExpertsData {
 public:
  FusedExpertsArgs args;

  ExpertsData(const ExpertsCase& c, DType dtype, Edge edge = Edge::end, std::uint64_t seed = 1)
      : case_(c), dtype_(dtype), tensors_(edge), random_(seed) {
    args.hidden = rows(dtype, c.tokens, c.hidden, false);
    fill(args.hidden, 1);
    add_routing();
    args.gate_up = weights(2 * c.inter, c.hidden);
    args.down = weights(c.hidden, c.inter);
    args.out = rows(dtype, c.tokens, c.hidden, true);
    if (c.store) args.gate_up_out = rows(dtype, c.tokens * c.k, 2 * c.inter, true);
    args.activation = c.activation;
    args.limit = c.limit;
    args.interleaved = c.interleaved;
  }

  // Makes outputs unwritten again. False if memory between their elements had been written.
  bool clear_outputs() const { return tensors_.clear_outputs(); }

  // Slots that name an expert.
  std::int64_t valid_pairs() const { return valid_pairs_; }

 protected:
  TensorView rows(DType dtype, std::int64_t count, std::int64_t columns, bool is_output) {
    const Sizes shape{count, columns}, strides{columns + (case_.padded ? 3 : 0), 1};
    return is_output ? tensors_.allocate_output(dtype, 2, shape, strides)
                     : tensors_.allocate(dtype, 2, shape, strides);
  }

  Sizes weight_strides(std::int64_t out, std::int64_t in) const {
    const std::int64_t gap = case_.padded ? 3 : 0;
    if (case_.transposed) return {in * (out + gap) + gap, 1, out + gap};
    return {out * (in + gap) + gap, in + gap, 1};
  }
  Sizes pair_strides() const { return case_.padded ? Sizes{1, case_.tokens} : Sizes{case_.k, 1}; }

  void fill(const TensorView& view, double size) {
    for_each_index(view, [&](const Index& at) { set(view, at, size * normal_(random_)); });
  }
  std::int64_t integer(std::int64_t low, std::int64_t high) {
    return std::uniform_int_distribution<std::int64_t>(low, high)(random_);
  }

  ExpertsCase case_;
  DType dtype_;
  GuardedTensors tensors_;

 private:
  void add_routing() {
    const ExpertsCase& c = case_;
    args.weights = tensors_.allocate(c.weights, 2, {c.tokens, c.k}, pair_strides());
    args.experts = tensors_.allocate(c.index, 2, {c.tokens, c.k}, pair_strides());
    used_.assign(std::size_t(c.experts), false);
    std::vector<std::int64_t> order(std::size_t(c.experts));
    std::iota(order.begin(), order.end(), 0);
    for (std::int64_t t = 0; t < c.tokens; ++t) {
      std::shuffle(order.begin(), order.end(), random_);
      for (std::int64_t j = 0; j < c.k; ++j) {
        std::int64_t e = order[std::size_t(j % c.experts)];
        const bool nobody =
            c.routing == Routing::none || (c.routing == Routing::sentinels && integer(0, 2) == 0);
        if (c.routing == Routing::one) e = c.experts - 1;
        if (c.routing == Routing::few) e -= e % 2;
        if (nobody) e = (t + j) % 2 ? -1 : c.experts;
        set(args.experts, {t, j}, double(e));
        set(args.weights, {t, j}, nobody ? std::nan("") : 0.6 + 0.3 * normal_(random_));
        if (nobody) continue;
        used_[std::size_t(e)] = true;
        ++valid_pairs_;
      }
    }
  }

  ExpertWeights weights(std::int64_t out, std::int64_t in) {
    const ExpertsCase& c = case_;
    ExpertWeights w;
    const double size = 1 / std::sqrt(double(in));
    if (c.codes) {
      w = codes(out, in, size);
    } else {
      w.weight = tensors_.allocate(dtype_, 3, {c.experts, out, in}, weight_strides(out, in));
      fill(w.weight, size);
    }
    if (c.bias) {
      // Beside hidden of a half type, biases are often fp32.
      const DType dtype = dtype_ == DType::f64 ? DType::f64 : c.interleaved ? DType::f32 : dtype_;
      const std::int64_t gap = c.padded ? 3 : 0;
      w.bias = tensors_.allocate(dtype, 2, {c.experts, out}, {out + gap, 1});
      fill(w.bias, 0.3);
    }
    for (const TensorView& view : {c.codes ? w.scale : w.weight, w.bias})
      if (view)
        for_each_index(view, [&](const Index& at) {
          if (!used_[std::size_t(at[0])]) set(view, at, std::nan(""));
        });
    return w;
  }

  ExpertWeights codes(std::int64_t out, std::int64_t in, double size) {
    const ExpertsCase& c = case_;
    const bool nibbles = *c.codes == DType::i4x2;
    const std::int64_t bytes = nibbles ? in / 2 : in, gap = c.padded ? 3 : 0;
    ExpertWeights w;
    w.weight =
        tensors_.allocate(*c.codes, 3, {c.experts, out, bytes}, {out * (bytes + gap) + gap, bytes + gap, 1});
    for_each_index(w.weight, [&](const Index& at) {
      // -128 is no code of int8; a nibble may be any.
      static_cast<std::int8_t*>(w.weight.data)[offset_of(w.weight, at)] =
          static_cast<std::int8_t>(integer(nibbles ? -128 : -127, 127));
    });
    const double step = size / (nibbles ? 4 : 64);
    if (nibbles)
      w.scale = tensors_.allocate_dense(DType::f32, 3, {c.experts, out, in / c.group});
    else
      w.scale = tensors_.allocate_dense(DType::f32, 2, {c.experts, out});
    for_each_index(w.scale, [&](const Index& at) {
      set(w.scale, at, step * (0.5 + std::uniform_real_distribution<double>()(random_)));
    });
    return w;
  }

  std::mt19937_64 random_;
  std::normal_distribution<double> normal_;
  std::vector<bool> used_;
  std::int64_t valid_pairs_ = 0;
};

// Gradients by name.
enum ExpertsGradient : int {
  kGradHidden,
  kGradGateUp,
  kGradDown,
  kGradWeights,
  kGradGateUpBias,
  kGradDownBias,
  kExpertsGradients
};
inline constexpr const char* kExpertsGradientNames[] = {
    "grad_hidden", "grad_gate_up", "grad_down", "grad_weights", "grad_gate_up_bias", "grad_down_bias"};

inline const TensorView& gradient_view(const FusedExpertsBackwardArgs& args, int gradient) {
  const TensorView* views[] = {&args.grad_hidden,  &args.grad_gate_up,      &args.grad_down,
                               &args.grad_weights, &args.grad_gate_up_bias, &args.grad_down_bias};
  return *views[gradient];
}

inline const TensorView& differentiated_view(const FusedExpertsArgs& args, int gradient) {
  const TensorView* views[] = {&args.hidden,  &args.gate_up.weight, &args.down.weight,
                               &args.weights, &args.gate_up.bias,   &args.down.bias};
  return *views[gradient];
}

// With gradients; those of the weights in fp32 where wide says so. args.forward.gate_up_out is an output of
// the forward.
class ExpertsBackwardData : public ExpertsData {
 public:
  FusedExpertsBackwardArgs backward;

  ExpertsBackwardData(const ExpertsCase& c, DType dtype, Edge edge = Edge::end, std::uint64_t seed = 1,
                      bool wide = false)
      : ExpertsData(c, dtype, edge, seed) {
    backward.forward = args;
    backward.grad_out = rows(dtype, c.tokens, c.hidden, false);
    fill(backward.grad_out, 1);
    backward.grad_hidden = rows(dtype, c.tokens, c.hidden, true);
    const DType of_weights = wide ? DType::f32 : dtype;
    backward.grad_gate_up = tensors_.allocate_output(of_weights, 3, {c.experts, 2 * c.inter, c.hidden},
                                                     weight_strides(2 * c.inter, c.hidden));
    backward.grad_down = tensors_.allocate_output(of_weights, 3, {c.experts, c.hidden, c.inter},
                                                  weight_strides(c.hidden, c.inter));
    backward.grad_weights = tensors_.allocate_output(c.weights, 2, {c.tokens, c.k}, pair_strides());
    if (!c.bias) return;
    backward.grad_gate_up_bias = like(args.gate_up.bias);
    backward.grad_down_bias = like(args.down.bias);
  }

 private:
  TensorView like(const TensorView& view) {
    return tensors_.allocate_output(view.dtype, view.rank, view.shape, view.stride);
  }
};

}  // namespace tileformer::test
