#include "experts_call.h"

#include <torch/csrc/stable/ops.h>

#include <utility>

#include "optional_view.h"
#include "require_rank.h"

namespace tileformer::torch_binding {
namespace {

using torch::stable::detail::to;

bool is_nibbles(const Tensor& tensor) { return tensor.scalar_type() == torch::headeronly::ScalarType::Byte; }

// Rows may lie in either order, except those of codes.
bool has_unit_weight_stride(const Tensor& weight) {
  if (has_unit_last_stride(weight)) return true;
  return weight.dim() == 3 && weight.strides()[1] == 1 && !is_nibbles(weight);
}

TensorView weight_view_of(const Tensor& weight, const char* name, const char* layout) {
  TensorView view;
  if (is_nibbles(weight) && weight.dim() == 3) {
    const auto n = weight.sizes(), s = weight.strides();
    view = {const_cast<void*>(weight.const_data_ptr()), DType::i4x2, {n[0], n[1], n[2]}, {s[0], s[1], s[2]}};
  } else {
    view = view_of(weight, name);
  }
  require_rank(name, view, 3, layout);
  return view;
}

}  // namespace

ExpertsCall::ExpertsCall(StableIValue* stack)
    : hidden(to<Tensor>(stack[0])),
      gate_up(to<Tensor>(stack[1])),
      down(to<Tensor>(stack[2])),
      weights(to<Tensor>(stack[3])),
      experts(to<Tensor>(stack[4])),
      gate_up_bias(to<std::optional<Tensor>>(stack[5])),
      down_bias(to<std::optional<Tensor>>(stack[6])),
      gate_up_scale(to<std::optional<Tensor>>(stack[7])),
      down_scale(to<std::optional<Tensor>>(stack[8])) {
  args.activation = static_cast<ExpertActivation>(to<std::int64_t>(stack[9]));
  args.interleaved = to<bool>(stack[10]);
  args.alpha = to<double>(stack[11]);
  args.limit = to<double>(stack[12]);
}

std::string ExpertsCall::copied() const {
  std::string names;
  const auto add = [&](const char* name) { names += (names.empty() ? "" : ", ") + std::string(name); };
  if (!has_unit_last_stride(hidden)) add("hidden");
  if (!has_unit_weight_stride(gate_up)) add("gate_up");
  if (!has_unit_weight_stride(down)) add("down");
  for (const auto& [tensor, name] : {std::pair{&gate_up_bias, "gate_up_bias"}, {&down_bias, "down_bias"}})
    if (given(*tensor) && !has_unit_last_stride(**tensor)) add(name);
  return names;
}

void ExpertsCall::bind() {
  if (!has_unit_last_stride(hidden)) hidden = torch::stable::contiguous(hidden);
  for (Tensor* weight : {&gate_up, &down})
    if (!has_unit_weight_stride(*weight)) *weight = torch::stable::contiguous(*weight);
  for (auto* rows : {&gate_up_bias, &down_bias, &gate_up_scale, &down_scale})
    if (given(*rows) && !has_unit_last_stride(**rows)) *rows = torch::stable::contiguous(**rows);
  args.hidden = view_of(hidden, "hidden");
  require_rank("hidden", args.hidden, 2, "[tokens, hidden]");
  args.gate_up = {weight_view_of(gate_up, "gate_up", "[experts, 2 * inter, hidden]"),
                  optional_view(gate_up_scale, "gate_up_scale"), optional_view(gate_up_bias, "gate_up_bias")};
  args.down = {weight_view_of(down, "down", "[experts, hidden, inter]"),
               optional_view(down_scale, "down_scale"), optional_view(down_bias, "down_bias")};
  args.weights = view_of(weights, "weights");
  args.experts = view_of(experts, "experts");
  require_rank("experts", args.experts, 2, "[tokens, k]");
}

Tensor ExpertsCall::allocate_out() {
  const Tensor out = empty_dense({args.hidden.shape[0], args.hidden.shape[1]}, args.hidden.dtype);
  args.out = view_of(out, "out");
  return out;
}

Tensor ExpertsCall::allocate_gate_up() {
  const std::int64_t pairs = args.experts.shape[0] * args.experts.shape[1];
  const Tensor stored = empty_dense({pairs, args.gate_up.weight.shape[1]}, args.hidden.dtype);
  args.gate_up_out = view_of(stored, "gate_up_out");
  return stored;
}

Tensor empty_like_weight(const Tensor& weight) {
  const auto n = weight.sizes();
  const bool across = !has_unit_last_stride(weight);
  return empty_in_order({n[0], n[1], n[2]}, across ? std::array{0, 2, 1} : std::array{0, 1, 2},
                        view_of(weight, "weight").dtype);
}

}  // namespace tileformer::torch_binding
