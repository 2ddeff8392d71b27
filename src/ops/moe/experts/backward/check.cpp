#include <string>
#include <utility>

#include "base/check_view.h"
#include "base/describe.h"
#include "ops/moe/experts/check.h"

namespace tileformer::moe {
namespace {

// Rows of stride 1, or one value for a whole dimension: what autograd expands.
Status check_grad_out(const TensorView& grad, const TensorView& hidden) {
  if (Status s = check_like("grad_out", grad, hidden.dtype, hidden, "[tokens, hidden]"); !s) return s;
  return grad.stride[1] == 0 ? Status::ok() : check_unit_stride("grad_out", grad);
}

// A gradient in the shape of its tensor.
Status check_gradient(const char* argument, const TensorView& grad, const TensorView& like) {
  if (!grad) return Status::ok();
  if (!like) return wrong(argument, describe(grad), "none, as there is nothing it is the gradient of");
  if (Status s = check_like(argument, grad, like.dtype, like, "as its tensor"); !s) return s;
  return check_distinct(argument, grad);
}

Status check_row_gradient(const char* argument, const TensorView& grad, const TensorView& like) {
  if (Status s = check_gradient(argument, grad, like); !s) return s;
  return grad ? check_unit_stride(argument, grad) : Status::ok();
}

// Which of the last two dimensions has unit stride: the last if both could.
int unit_dimension(const TensorView& weight) { return weight.stride[2] == 1 || weight.shape[2] == 1 ? 2 : 1; }

Status check_weight_gradient(const char* argument, const TensorView& grad, const TensorView& weight) {
  if (!grad) return Status::ok();
  if (grad.dtype != weight.dtype && grad.dtype != DType::f32)
    return wrong(argument, std::string("dtype ") + name_of(grad.dtype),
                 weight.dtype == DType::f32 ? "float32" : name_of(weight.dtype) + std::string(" or float32"));
  TensorView like = weight;
  like.dtype = grad.dtype;
  if (Status s = check_gradient(argument, grad, like); !s) return s;
  const int unit = unit_dimension(weight);
  if (grad.elements() == 0 || grad.shape[unit] == 1 || grad.stride[unit] == 1) return Status::ok();
  return wrong(argument,
               "stride " + std::to_string(grad.stride[unit]) + " in dimension " + std::to_string(unit),
               "stride 1, as the weights have");
}

}  // namespace

Status check(const FusedExpertsBackwardArgs& args, Problem* problem) {
  const FusedExpertsArgs& f = args.forward;
  if (Status s = check_inputs(f, problem); !s) return s;
  for (const auto& [name, weight] : {std::pair{"gate_up", &f.gate_up.weight}, {"down", &f.down.weight}})
    if (!is_floating(weight->dtype))
      return wrong(name, std::string("dtype ") + name_of(weight->dtype),
                   std::string(name_of(f.hidden.dtype)) + ": codes have no gradient");
  if (Status s = check_grad_out(args.grad_out, f.hidden); !s) return s;
  if (Status s = check_row_gradient("grad_hidden", args.grad_hidden, f.hidden); !s) return s;
  if (Status s = check_weight_gradient("grad_gate_up", args.grad_gate_up, f.gate_up.weight); !s) return s;
  if (Status s = check_weight_gradient("grad_down", args.grad_down, f.down.weight); !s) return s;
  if (Status s = check_gradient("grad_weights", args.grad_weights, f.weights); !s) return s;
  if (Status s = check_row_gradient("grad_gate_up_bias", args.grad_gate_up_bias, f.gate_up.bias); !s)
    return s;
  return check_row_gradient("grad_down_bias", args.grad_down_bias, f.down.bias);
}

}  // namespace tileformer::moe
