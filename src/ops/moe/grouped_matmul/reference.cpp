// The definitions, element by element, in fp64.
#include "base/element.h"
#include "ops/moe/grouped_matmul/check.h"

namespace tileformer {
namespace {

using moe::grouped::Problem;

double get(const TensorView& v, std::int64_t i, std::int64_t j, std::int64_t k = 0) {
  return load_element(v.data, v.dtype, i * v.stride[0] + j * v.stride[1] + k * v.stride[2]);
}
void put(const TensorView& v, double x, std::int64_t i, std::int64_t j, std::int64_t k = 0) {
  store_element(v.data, v.dtype, i * v.stride[0] + j * v.stride[1] + k * v.stride[2], x);
}

void clear_rows(const TensorView& v, std::int64_t first) {
  for (std::int64_t r = first; r < v.shape[0]; ++r)
    for (std::int64_t i = 0; i < v.shape[1]; ++i) put(v, 0, r, i);
}

// out = weight rows + bias, zeros in rows of no expert.
void multiply(const TensorView& rows, const TensorView& weight, const TensorView& bias,
              const std::vector<std::int64_t>& offsets, const TensorView& out) {
  for (std::int64_t e = 0; e < weight.shape[0]; ++e)
    for (std::int64_t r = offsets[e]; r < offsets[e + 1]; ++r)
      for (std::int64_t o = 0; o < weight.shape[1]; ++o) {
        double sum = bias ? get(bias, e, o) : 0;
        for (std::int64_t i = 0; i < weight.shape[2]; ++i) sum += get(weight, e, o, i) * get(rows, r, i);
        put(out, sum, r, o);
      }
  clear_rows(out, offsets.back());
}

void weight_gradient(const GroupedMatmulBackwardArgs& args, const std::vector<std::int64_t>& offsets) {
  const TensorView& grad = args.grad_weight;
  for (std::int64_t e = 0; e < grad.shape[0]; ++e)
    for (std::int64_t o = 0; o < grad.shape[1]; ++o)
      for (std::int64_t i = 0; i < grad.shape[2]; ++i) {
        double sum = 0;
        for (std::int64_t r = offsets[e]; r < offsets[e + 1]; ++r)
          sum += get(args.grad_out, r, o) * get(args.forward.rows, r, i);
        put(grad, sum, e, o, i);
      }
}

void bias_gradient(const GroupedMatmulBackwardArgs& args, const std::vector<std::int64_t>& offsets) {
  const TensorView& grad = args.grad_bias;
  for (std::int64_t e = 0; e < grad.shape[0]; ++e)
    for (std::int64_t o = 0; o < grad.shape[1]; ++o) {
      double sum = 0;
      for (std::int64_t r = offsets[e]; r < offsets[e + 1]; ++r) sum += get(args.grad_out, r, o);
      put(grad, sum, e, o);
    }
}

}  // namespace

Status grouped_matmul_reference(const GroupedMatmulArgs& args) {
  Problem problem;
  std::vector<std::int64_t> offsets;
  if (Status s = moe::grouped::check(args, &problem); !s) return s;
  if (Status s = moe::grouped::read_offsets(args.counts, problem, &offsets); !s) return s;
  multiply(args.rows, args.weights.weight, args.weights.bias, offsets, args.out);
  return Status::ok();
}

Status grouped_matmul_backward_reference(const GroupedMatmulBackwardArgs& args) {
  Problem problem;
  std::vector<std::int64_t> offsets;
  if (Status s = moe::grouped::check(args, &problem); !s) return s;
  if (Status s = moe::grouped::read_offsets(args.forward.counts, problem, &offsets); !s) return s;
  if (args.grad_rows)
    multiply(args.grad_out, args.forward.weights.weight.transposed(1, 2), {}, offsets, args.grad_rows);
  if (args.grad_weight) weight_gradient(args, offsets);
  if (args.grad_bias) bias_gradient(args, offsets);
  return Status::ok();
}

}  // namespace tileformer
