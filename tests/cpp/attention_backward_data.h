// The tensors of the backward of an AttentionCase: those of the forward, and gradients in guarded memory.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "attention_data.h"
#include "tileformer/attention_backward.h"

namespace tileformer::test {

// What the backward computes, in the order of these names.
enum Gradient : int { kQuery, kKey, kValue, kMask, kSinks, kGradients };
inline constexpr const char* kGradientNames[kGradients] = {"grad_query", "grad_key", "grad_value",
                                                           "grad_mask", "grad_sinks"};

template <typename Args>
auto& gradient_view(Args& args, int gradient) {
  switch (gradient) {
    case kQuery: return args.grad_query;
    case kKey: return args.grad_key;
    case kValue: return args.grad_value;
    case kMask: return args.grad_mask;
    default: return args.grad_sinks;
  }
}

using Gradients = std::array<std::vector<double>, kGradients>;  // in logical order; empty: not wanted

inline Gradients gradients_of(const AttentionBackwardArgs& args) {
  Gradients all;
  for (int i = 0; i < kGradients; ++i) all[i] = elements_of(gradient_view(args, i));
  return all;
}

// Every gradient that the case has; grad_lse if it has a lse (which the backward always reads).
class AttentionBackwardData {
 public:
  AttentionBackwardArgs args;

  AttentionBackwardData(const AttentionCase& c, DType dtype, Edge edge = Edge::end, std::uint64_t seed = 1)
      : forward_(with_lse(c), dtype, edge, seed), tensors_(edge), random_(seed + 1) {
    const DType statistics = dtype == DType::f64 ? DType::f64 : DType::f32;
    args.forward = forward_.args;
    const Sizes out{c.batch, c.heads, c.seq_q, c.dim_v}, lse{c.batch, c.heads, c.seq_q};
    // As from out.sum(): one row for all.
    args.grad_out = tensors_.allocate(
        dtype, 4, out, c.layout == Layout::expanded_kv ? Sizes{0, 0, 0, 1} : strides_in(c.layout, out));
    fill_normal(args.grad_out);
    if (c.lse) {
      args.grad_lse = tensors_.allocate(statistics, 3, lse, lse_strides_in(c.layout, lse));
      fill_normal(args.grad_lse);
    }
    for (auto [gradient, like] : {std::pair{&args.grad_query, &args.forward.query},
                                  {&args.grad_key, &args.forward.key},
                                  {&args.grad_value, &args.forward.value}}) {
      *gradient = tensors_.allocate_output(dtype, 4, like->shape, strides_in(c.layout, like->shape));
    }
    const TensorView& mask = args.forward.attn_mask;
    if (mask && mask.dtype != DType::boolean) add_mask_gradient(c.mask, statistics);
    if (c.sinks) {
      const std::int64_t step = c.layout == Layout::padded ? 3 : 1;
      args.grad_sinks = tensors_.allocate_output(statistics, 1, {c.heads}, {step});
    }
  }

  // Makes outputs unwritten again. False if memory between their elements had been written.
  bool clear_gradients() const { return tensors_.clear_outputs(); }
  bool clear_outputs() const {
    const bool forward = forward_.clear_outputs();
    return clear_gradients() && forward;
  }

 private:
  static AttentionCase with_lse(AttentionCase c) {
    c.lse = true;
    return c;
  }

  void fill_normal(const TensorView& view) {
    for_each_index(view, [&](const Index& at) { set(view, at, normal_(random_)); });
  }

  void add_mask_gradient(const Mask& mask, DType dtype) {
    const TensorView& like = args.forward.attn_mask;
    Sizes shape = like.shape;
    // A mask that was expanded may have a gradient that was not, and one that was.
    if (mask.kind == Mask::Kind::f32)
      for (int i = 0; i < 4; ++i) shape[i] = like.stride[i] == 0 ? 1 : shape[i];
    Sizes stride = dense_strides(4, shape);
    if (mask.order == Mask::Order::sparse)
      for (std::int64_t& s : stride) s *= 2;
    args.grad_mask = tensors_.allocate_output(dtype, 4, shape, stride);
  }

  AttentionData forward_;
  GuardedTensors tensors_;
  std::mt19937_64 random_;
  std::normal_distribution<double> normal_;
};

}  // namespace tileformer::test
