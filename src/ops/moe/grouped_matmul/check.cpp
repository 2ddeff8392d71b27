#include "ops/moe/grouped_matmul/check.h"

#include <string>

#include "base/check_view.h"
#include "base/describe.h"

namespace tileformer::moe::grouped {
namespace {

constexpr const char* kRowsLayout = "[rows, in]";
constexpr const char* kOutLayout = "[rows, out]";
constexpr const char* kWeightLayout = "[experts, out, in]";
constexpr const char* kBiasLayout = "[experts, out]";

std::string dtype_text(const TensorView& view) { return std::string("dtype ") + name_of(view.dtype); }

// Matrices can be read and written either way.
Status check_matrix_strides(const char* argument, const TensorView& weight) {
  for (int i : {1, 2})
    if (weight.shape[i] == 1 || weight.stride[i] == 1) return Status::ok();
  if (weight.elements() == 0) return Status::ok();
  return wrong(argument,
               "strides " + std::to_string(weight.stride[1]) + " and " + std::to_string(weight.stride[2]) +
                   " in the last two dimensions",
               "stride 1 in one of them");
}

Status check_weight(const ExpertWeights& weights, const TensorView& rows, Problem* problem) {
  const TensorView& weight = weights.weight;
  if (Status s = check_view("weight", weight, 3, kWeightLayout); !s) return s;
  if (weight.dtype != rows.dtype)
    return wrong("weight", dtype_text(weight), std::string(name_of(rows.dtype)) + ", as rows");
  if (weight.shape[2] != rows.shape[1])
    return wrong(
        "weight", "shape " + describe_shape(weight),
        "[experts, out, " + std::to_string(rows.shape[1]) + "], rows of as many elements as rows has");
  if (weights.scale)
    return wrong("scale", describe(weights.scale), "none, as grouped_matmul takes no quantised weights");
  problem->experts = weight.shape[0];
  problem->out = weight.shape[1];
  problem->in = weight.shape[2];
  return check_matrix_strides("weight", weight);
}

// bias or its gradient.
Status check_bias(const char* argument, const TensorView& bias, DType rows, const Problem& problem) {
  const bool wide = rows == DType::f64;
  if (bias && (!is_floating(bias.dtype) || (bias.dtype == DType::f64) != wide))
    return wrong(argument, dtype_text(bias),
                 wide ? "float64, as rows"
                      : std::string("float32, float16 or bfloat16 beside rows of ") + name_of(rows));
  const TensorView like(nullptr, bias.dtype, {problem.experts, problem.out}, {});
  if (Status s = check_like(argument, bias, bias.dtype, like, kBiasLayout); !s) return s;
  return check_unit_stride(argument, bias);
}

// What forward and backward share.
Status check_inputs(const GroupedMatmulArgs& args, Problem* problem) {
  const TensorView& rows = args.rows;
  if (Status s = check_view("rows", rows, 2, kRowsLayout); !s) return s;
  if (!is_floating(rows.dtype))
    return wrong("rows", dtype_text(rows), "float32, float16, bfloat16 or float64");
  if (Status s = check_unit_stride("rows", rows); !s) return s;
  problem->rows = rows.shape[0];
  if (Status s = check_weight(args.weights, rows, problem); !s) return s;
  if (args.weights.bias)
    if (Status s = check_bias("bias", args.weights.bias, rows.dtype, *problem); !s) return s;
  const TensorView like(nullptr, DType::i64, {problem->experts}, {});
  return check_like("counts", args.counts, DType::i64, like, "[experts]");
}

Status check_rows_like(const char* argument, const TensorView& view, DType dtype, std::int64_t rows,
                       std::int64_t columns, const char* layout) {
  const TensorView like(nullptr, dtype, {rows, columns}, {});
  if (Status s = check_like(argument, view, dtype, like, layout); !s) return s;
  return check_unit_stride(argument, view);
}

Status check_grad_weight(const TensorView& grad, const TensorView& weight) {
  if (grad && grad.dtype != weight.dtype && (grad.dtype != DType::f32 || weight.dtype == DType::f64))
    return wrong("grad_weight", dtype_text(grad),
                 weight.dtype == DType::f64 ? "float64, as weight"
                                            : std::string(name_of(weight.dtype)) + ", as weight, or float32");
  if (Status s = check_like("grad_weight", grad, grad.dtype, weight, kWeightLayout); !s) return s;
  if (Status s = check_matrix_strides("grad_weight", grad); !s) return s;
  return check_distinct("grad_weight", grad);
}

}  // namespace

Status check(const GroupedMatmulArgs& args, Problem* problem) {
  if (Status s = check_inputs(args, problem); !s) return s;
  if (Status s = check_rows_like("out", args.out, args.rows.dtype, problem->rows, problem->out, kOutLayout);
      !s)
    return s;
  return check_distinct("out", args.out);
}

Status check(const GroupedMatmulBackwardArgs& args, Problem* problem) {
  const TensorView &rows = args.forward.rows, &weight = args.forward.weights.weight;
  if (Status s = check_inputs(args.forward, problem); !s) return s;
  if (Status s =
          check_rows_like("grad_out", args.grad_out, rows.dtype, problem->rows, problem->out, kOutLayout);
      !s)
    return s;
  if (args.grad_rows) {
    if (Status s =
            check_rows_like("grad_rows", args.grad_rows, rows.dtype, problem->rows, problem->in, kRowsLayout);
        !s)
      return s;
    if (Status s = check_distinct("grad_rows", args.grad_rows); !s) return s;
  }
  if (args.grad_weight)
    if (Status s = check_grad_weight(args.grad_weight, weight); !s) return s;
  if (!args.grad_bias) return Status::ok();
  if (Status s = check_bias("grad_bias", args.grad_bias, rows.dtype, *problem); !s) return s;
  return check_distinct("grad_bias", args.grad_bias);
}

Status read_offsets(const TensorView& counts, const Problem& problem, std::vector<std::int64_t>* offsets) {
  offsets->assign(1, 0);
  const auto* count = static_cast<const std::int64_t*>(counts.data);
  for (std::int64_t e = 0; e < problem.experts; ++e) {
    const std::int64_t n = count[e * counts.stride[0]], before = offsets->back();
    if (n < 0)
      return wrong("counts", std::to_string(n) + " for expert " + std::to_string(e), "numbers of at least 0");
    if (n > problem.rows - before)
      return wrong(
          "counts",
          "more than " + std::to_string(problem.rows) + " rows for experts 0 to " + std::to_string(e),
          "a sum of at most " + std::to_string(problem.rows) + ", the number of rows");
    offsets->push_back(before + n);
  }
  return Status::ok();
}

}  // namespace tileformer::moe::grouped
