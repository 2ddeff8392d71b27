#include "ops/moe/experts/check.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <string>

#include "base/check_view.h"
#include "base/describe.h"

namespace tileformer::moe {
namespace {

constexpr const char* kTokenLayout = "[tokens, hidden]";
constexpr const char* kPairLayout = "[tokens, k]";

std::string dtype_text(const TensorView& view) { return std::string("dtype ") + name_of(view.dtype); }

std::string text(double x) {
  char digits[32];
  std::snprintf(digits, sizeof digits, "%g", x);
  return digits;
}

bool is_codes(DType t) { return t == DType::i8 || t == DType::i4x2; }

Status check_hidden(const TensorView& hidden) {
  if (Status s = check_view("hidden", hidden, 2, kTokenLayout); !s) return s;
  if (!is_floating(hidden.dtype))
    return wrong("hidden", dtype_text(hidden), "float32, float16, bfloat16 or float64");
  if (hidden.shape[1] < 1)
    return wrong("hidden", "shape " + describe_shape(hidden), "at least 1 element of a token");
  return check_unit_stride("hidden", hidden);
}

// One product: what its tensors are called, and its sizes.
struct Product {
  const char *name, *scale_name, *bias_name;
  const ExpertWeights& w;
  std::int64_t experts, out, in;
};

Status check_weight_dtype(const char* argument, const TensorView& weight, DType hidden) {
  if (!weight || weight.dtype == hidden || is_codes(weight.dtype)) return Status::ok();
  return wrong(argument, dtype_text(weight), std::string(name_of(hidden)) + " as hidden, int8 or int4x2");
}

// Rows that lie side by side can be read either way; codes only along `in`.
Status check_weight_strides(const char* argument, const TensorView& weight) {
  if (is_codes(weight.dtype)) return check_unit_stride(argument, weight);
  for (int i : {1, 2})
    if (weight.shape[i] == 1 || weight.stride[i] == 1) return Status::ok();
  if (weight.elements() == 0) return Status::ok();
  return wrong(argument,
               "strides " + std::to_string(weight.stride[1]) + " and " + std::to_string(weight.stride[2]) +
                   " in the last two dimensions",
               "stride 1 in one of them");
}

Status check_scale(const Product& p) {
  const TensorView& scale = p.w.scale;
  if (!is_codes(p.w.weight.dtype)) {
    if (!scale) return Status::ok();
    return wrong(p.scale_name, describe(scale), std::string("none, as ") + p.name + " is not quantised");
  }
  const bool grouped = p.w.weight.dtype == DType::i4x2;
  const char* layout = grouped ? "[experts, out, in / group]" : "[experts, out]";
  if (Status s = check_view(p.scale_name, scale, grouped ? 3 : 2, layout); !s) return s;
  if (scale.dtype != DType::f32) return wrong(p.scale_name, dtype_text(scale), "float32");
  TensorView expected = scale;
  expected.shape[0] = p.experts;
  expected.shape[1] = p.out;
  if (Status s = check_shape(p.scale_name, scale, expected, layout); !s) return s;
  if (grouped) {
    const std::int64_t groups = scale.shape[2], group = groups > 0 ? p.in / groups : 0;
    if ((group != 32 && group != 64 && group != 128) || group * groups != p.in)
      return wrong(p.scale_name, std::to_string(groups) + " groups of " + std::to_string(p.in) + " columns",
                   "groups of 32, 64 or 128 columns that divide them");
  }
  return check_unit_stride(p.scale_name, scale);
}

Status check_bias(const Product& p, DType hidden) {
  const TensorView& bias = p.w.bias;
  if (!bias) return Status::ok();
  if (!is_floating(bias.dtype) || (bias.dtype == DType::f64 && hidden != DType::f64))
    return wrong(p.bias_name, dtype_text(bias),
                 std::string("float32, float16 or bfloat16 beside hidden of ") + name_of(hidden));
  const TensorView like(nullptr, bias.dtype, {p.experts, p.out}, {});
  if (Status s = check_like(p.bias_name, bias, bias.dtype, like, "[experts, out]"); !s) return s;
  return check_unit_stride(p.bias_name, bias);
}

Status check_product(const Product& p, DType hidden, const char* layout) {
  const TensorView& weight = p.w.weight;
  TensorView like(nullptr, weight.dtype, {p.experts, p.out, p.in}, {});
  if (weight.dtype == DType::i4x2) {
    if (p.in % 2 != 0)
      return wrong(p.name, std::to_string(p.in) + " columns of int4x2", "an even number, two to a byte");
    like.shape[2] = p.in / 2;
  }
  if (Status s = check_like(p.name, weight, weight.dtype, like, layout); !s) return s;
  if (Status s = check_weight_strides(p.name, weight); !s) return s;
  if (Status s = check_scale(p); !s) return s;
  return check_bias(p, hidden);
}

// Sizes come from hidden and gate_up; everything else is compared with them.
Status check_weights(const FusedExpertsArgs& args, Problem* problem) {
  const DType dtype = args.hidden.dtype;
  const TensorView& gate_up = args.gate_up.weight;
  if (Status s = check_view("gate_up", gate_up, 3, "[experts, 2 * inter, hidden]"); !s) return s;
  if (Status s = check_weight_dtype("gate_up", gate_up, dtype); !s) return s;
  if (gate_up.shape[0] < 1) return wrong("gate_up", "shape " + describe_shape(gate_up), "at least 1 expert");
  if (gate_up.shape[1] < 2 || gate_up.shape[1] % 2 != 0)
    return wrong("gate_up", "shape " + describe_shape(gate_up), "an even number of rows, at least 2");
  problem->experts = gate_up.shape[0];
  problem->inter = gate_up.shape[1] / 2;
  const Product up{"gate_up",        "gate_up_scale",    "gate_up_bias", args.gate_up,
                   problem->experts, 2 * problem->inter, problem->hidden};
  if (Status s = check_product(up, dtype, "[experts, 2 * inter, hidden]"); !s) return s;
  if (Status s = check_weight_dtype("down", args.down.weight, dtype); !s) return s;
  const Product down{"down",           "down_scale",    "down_bias",   args.down,
                     problem->experts, problem->hidden, problem->inter};
  return check_product(down, dtype, "[experts, hidden, inter]");
}

Status check_routing(const FusedExpertsArgs& args, Problem* problem) {
  const TensorView &weights = args.weights, &experts = args.experts;
  if (Status s = check_view("experts", experts, 2, kPairLayout); !s) return s;
  if (experts.dtype != DType::i32 && experts.dtype != DType::i64)
    return wrong("experts", dtype_text(experts), "int32 or int64");
  if (experts.shape[0] != problem->tokens)
    return wrong("experts", "shape " + describe_shape(experts),
                 std::to_string(problem->tokens) + " rows, as many as hidden has");
  if (experts.elements() > INT32_MAX)
    return wrong("experts", "shape " + describe_shape(experts), "at most 2147483647 elements");
  problem->k = experts.shape[1];
  if (Status s = check_view("weights", weights, 2, kPairLayout); !s) return s;
  if (!is_floating(weights.dtype))
    return wrong("weights", dtype_text(weights), "float32, float16, bfloat16 or float64");
  return check_shape("weights", weights, experts, kPairLayout);
}

Status check_activation(const FusedExpertsArgs& args) {
  if (args.activation > ExpertActivation::swiglu_oai)
    return wrong("activation", std::to_string(static_cast<int>(args.activation)),
                 "silu, gelu, gelu_tanh or swiglu_oai");
  // Kernels hold both in fp32.
  if (!std::isfinite(static_cast<float>(args.alpha)))
    return wrong("alpha", text(args.alpha), "a finite number");
  if (!(static_cast<float>(args.limit) > 0)) return wrong("limit", text(args.limit), "a number above 0");
  return Status::ok();
}

// Rows of one stride may lie beside each other; any other overlap of memory counts.
bool rows_overlap(const TensorView& a, const TensorView& b) {
  const auto size = static_cast<std::int64_t>(size_of(a.dtype));
  const std::int64_t width = a.shape[1] * size, height = a.shape[0], stride = a.stride[0] * size;
  const auto first = [](const TensorView& v) { return reinterpret_cast<std::intptr_t>(v.data); };
  const std::int64_t distance = first(b) - first(a);
  if (height > 1 && a.stride[0] == b.stride[0] && stride >= width) {
    const std::int64_t within = ((distance % stride) + stride) % stride;
    if (within >= width && within + width <= stride) return false;
  }
  const auto low = [&](const TensorView& v) {
    return std::min<std::int64_t>(0, (height - 1) * v.stride[0] * size);
  };
  const auto high = [&](const TensorView& v) {
    return std::max<std::int64_t>(0, (height - 1) * v.stride[0] * size) + width;
  };
  return a.elements() > 0 && distance + low(b) < high(a) && low(a) < distance + high(b);
}

Status check_gate_up_out(const FusedExpertsArgs& args, const Problem& problem) {
  const TensorView& stored = args.gate_up_out;
  if (!stored) return Status::ok();
  const TensorView like(nullptr, args.hidden.dtype, {problem.pairs(), 2 * problem.inter}, {});
  if (Status s = check_like("gate_up_out", stored, args.hidden.dtype, like, "[tokens * k, 2 * inter]"); !s)
    return s;
  if (Status s = check_unit_stride("gate_up_out", stored); !s) return s;
  return check_distinct("gate_up_out", stored);
}

}  // namespace

Status check_inputs(const FusedExpertsArgs& args, Problem* problem) {
  Problem checked{};
  if (Status s = check_hidden(args.hidden); !s) return s;
  checked.tokens = args.hidden.shape[0];
  checked.hidden = args.hidden.shape[1];
  if (Status s = check_weights(args, &checked); !s) return s;
  if (Status s = check_routing(args, &checked); !s) return s;
  if (Status s = check_activation(args); !s) return s;
  if (Status s = check_gate_up_out(args, checked); !s) return s;
  *problem = checked;
  return Status::ok();
}

Status check(const FusedExpertsArgs& args, Problem* problem) {
  if (Status s = check_inputs(args, problem); !s) return s;
  if (Status s = check_like("out", args.out, args.hidden.dtype, args.hidden, kTokenLayout); !s) return s;
  if (Status s = check_unit_stride("out", args.out); !s) return s;
  if (Status s = check_distinct("out", args.out); !s) return s;
  if (rows_overlap(args.hidden, args.out)) return wrong("out", "memory of hidden", "memory of its own");
  return Status::ok();
}

}  // namespace tileformer::moe
