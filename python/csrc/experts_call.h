// The arguments of the torch operators of experts, from their stack to FusedExpertsArgs.
#pragma once

#include <torch/csrc/stable/library.h>

#include <optional>
#include <string>

#include "tileformer/fused_experts.h"
#include "torch_tensor.h"

namespace tileformer::torch_binding {

// Codes: int8, or uint8 for two of int4 in a byte, each with its scale.
#define TILEFORMER_EXPERTS_ARGUMENTS                                                       \
  "Tensor hidden, Tensor gate_up, Tensor down, Tensor weights, Tensor experts, "           \
  "Tensor? gate_up_bias=None, Tensor? down_bias=None, Tensor? gate_up_scale=None, "        \
  "Tensor? down_scale=None, int activation=0, bool interleaved=False, float alpha=1.702, " \
  "float limit=7.0"

struct ExpertsCall {
  static constexpr int kArguments = 13;

  Tensor hidden, gate_up, down, weights, experts;
  std::optional<Tensor> gate_up_bias, down_bias, gate_up_scale, down_scale;
  FusedExpertsArgs args;

  explicit ExpertsCall(StableIValue* stack);

  // Names of the inputs that bind() copies.
  std::string copied() const;

  // Views of the tensors in args; what is not adjacent in memory as the operator needs it is copied.
  void bind();

  Tensor allocate_out();      // as hidden; sets args.out
  Tensor allocate_gate_up();  // [tokens * k, 2 * inter]; sets args.gate_up_out
};

// Dense, with the dimension innermost that is in `weight`.
Tensor empty_like_weight(const Tensor& weight);

}  // namespace tileformer::torch_binding
