#include "ops/moe/route/check.h"

#include <cmath>
#include <cstdio>
#include <string>

#include "base/check_view.h"
#include "base/element.h"
#include "ops/moe/route/kernel_args.h"

namespace tileformer::route_op {
namespace {

constexpr const char* kLogitsLayout = "[tokens, experts]";
constexpr const char* kSlotsLayout = "[tokens, k]";

std::string number(double x) {
  char digits[32];
  std::snprintf(digits, sizeof digits, "%g", x);
  return digits;
}

std::string range(std::int64_t first, std::int64_t last) {
  return std::to_string(first) + " to " + std::to_string(last);
}

Status check_logits(const TensorView& logits) {
  if (Status s = check_view("logits", logits, 2, kLogitsLayout); !s) return s;
  if (!is_floating(logits.dtype))
    return wrong("logits", std::string("dtype ") + name_of(logits.dtype),
                 "float32, float16, bfloat16 or float64");
  if (logits.shape[1] < 1 || logits.shape[1] > kMaxExperts)
    return wrong("logits", std::to_string(logits.shape[1]) + " experts", range(1, kMaxExperts));
  return check_unit_stride("logits", logits);
}

DType statistics(const TensorView& logits) { return logits.dtype == DType::f64 ? DType::f64 : DType::f32; }

Status check_scale(double scale) {
  const float rounded = static_cast<float>(scale);
  if (rounded > 0 && std::isfinite(rounded)) return Status::ok();
  return wrong("scale", number(scale), "a finite float32 above 0");
}

// [tokens, k] with the tokens of logits.
Status check_slots(const char* argument, const TensorView& view, DType dtype, const TensorView& logits,
                   std::int64_t k) {
  const TensorView like(nullptr, dtype, {logits.shape[0], k}, {});
  return check_like(argument, view, dtype, like, kSlotsLayout);
}

Status check_output(const char* argument, const TensorView& view, DType dtype, const TensorView& logits,
                    std::int64_t k) {
  if (Status s = check_slots(argument, view, dtype, logits, k); !s) return s;
  return check_distinct(argument, view);
}

Status check_bias(const TensorView& bias, std::int64_t experts) {
  const TensorView like(nullptr, bias.dtype, {experts}, {});
  if (bias && !is_floating(bias.dtype))
    return wrong("bias", std::string("dtype ") + name_of(bias.dtype),
                 "float32, float16, bfloat16 or float64");
  if (Status s = check_like("bias", bias, bias.dtype, like, "[experts]"); !s) return s;
  if (Status s = check_unit_stride("bias", bias); !s) return s;
  for (std::int64_t e = 0; e < experts; ++e) {
    const double x = load_element(bias.data, bias.dtype, e);
    if (!(static_cast<float>(x) < INFINITY))
      return wrong("bias", number(x) + " for expert " + std::to_string(e), "finite float32 values, or -inf");
  }
  return Status::ok();
}

Status check_groups(const RouteArgs& args) {
  const std::int64_t experts = args.logits.shape[1];
  if (args.num_groups < 1 || experts % args.num_groups != 0)
    return wrong("num_groups", std::to_string(args.num_groups),
                 "a divisor of the " + std::to_string(experts) + " experts");
  if (args.top_groups < 1 || args.top_groups > args.num_groups)
    return wrong("top_groups", std::to_string(args.top_groups), range(1, args.num_groups));
  return Status::ok();
}

Status check_k(const char* argument, std::int64_t k, std::int64_t most) {
  if (k >= 1 && k <= most) return Status::ok();
  return wrong(argument, "k = " + std::to_string(k), range(1, most) + ", the experts that can be chosen");
}

Status check_indices(const char* argument, const TensorView& view, std::int64_t lowest,
                     std::int64_t experts) {
  const auto* index = static_cast<const std::int32_t*>(view.data);
  for (std::int64_t t = 0; t < view.shape[0]; ++t) {
    for (std::int64_t j = 0; j < view.shape[1]; ++j) {
      const std::int64_t e = index[t * view.stride[0] + j * view.stride[1]];
      if (e < lowest || e >= experts)
        return wrong(argument,
                     std::to_string(e) + " in token " + std::to_string(t) + ", slot " + std::to_string(j),
                     range(0, experts - 1) + (lowest < 0 ? ", or -1 for a dropped slot" : ""));
    }
  }
  return Status::ok();
}

}  // namespace

Status check(const RouteArgs& args) {
  const TensorView& logits = args.logits;
  if (Status s = check_logits(logits); !s) return s;
  if (args.bias)
    if (Status s = check_bias(args.bias, logits.shape[1]); !s) return s;
  if (Status s = check_groups(args); !s) return s;
  if (Status s = check_view("weights", args.weights, 2, kSlotsLayout); !s) return s;
  const std::int64_t k = args.weights.shape[1];
  if (Status s = check_k("weights", k, logits.shape[1] / args.num_groups * args.top_groups); !s) return s;
  if (Status s = check_output("weights", args.weights, statistics(logits), logits, k); !s) return s;
  if (Status s = check_output("experts", args.experts, DType::i32, logits, k); !s) return s;
  if (args.chosen)
    if (Status s = check_output("chosen", args.chosen, DType::i32, logits, k); !s) return s;
  if (Status s = check_scale(args.scale); !s) return s;
  if (args.capacity < -1)
    return wrong("capacity", std::to_string(args.capacity), "0 or more, or -1 for no limit");
  return Status::ok();
}

Status check(const RouteBackwardArgs& args) {
  const TensorView& logits = args.logits;
  if (Status s = check_logits(logits); !s) return s;
  if (Status s = check_view("experts", args.experts, 2, kSlotsLayout); !s) return s;
  const std::int64_t k = args.experts.shape[1], experts = logits.shape[1];
  if (Status s = check_k("experts", k, experts); !s) return s;
  if (Status s = check_slots("experts", args.experts, DType::i32, logits, k); !s) return s;
  if (args.chosen)
    if (Status s = check_slots("chosen", args.chosen, DType::i32, logits, k); !s) return s;
  if (Status s = check_slots("grad_weights", args.grad_weights, statistics(logits), logits, k); !s) return s;
  if (Status s = check_like("grad_logits", args.grad_logits, logits.dtype, logits, kLogitsLayout); !s)
    return s;
  if (Status s = check_unit_stride("grad_logits", args.grad_logits); !s) return s;
  if (Status s = check_distinct("grad_logits", args.grad_logits); !s) return s;
  if (Status s = check_scale(args.scale); !s) return s;
  if (!args.chosen) return check_indices("experts", args.experts, 0, experts);
  if (Status s = check_indices("experts", args.experts, -1, experts); !s) return s;
  return check_indices("chosen", args.chosen, 0, experts);
}

}  // namespace tileformer::route_op
