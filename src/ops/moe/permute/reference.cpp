// The definition, row by row, in fp64.
#include <vector>

#include "base/element.h"
#include "ops/moe/permute/check.h"
#include "ops/moe/permute/row_map.h"

namespace tileformer {
namespace {

double get(const TensorView& view, std::int64_t i, std::int64_t j = 0) {
  return load_element(view.data, view.dtype, i * view.stride[0] + j * view.stride[1]);
}
void set(const TensorView& view, std::int64_t i, std::int64_t j, double x) {
  store_element(view.data, view.dtype, i * view.stride[0] + j * view.stride[1], x);
}

Status check_source(const TensorView& source, const TensorView& weights) {
  const std::int64_t tokens = weights.shape[0], k = weights.shape[1];
  std::vector<std::int64_t> scratch(permute_op::row_map_bytes(source.shape[0], tokens, k) / 8 + 1);
  permute_op::TokenRows map;
  return permute_op::map_rows(source, tokens, k, scratch.data(), &map);
}

std::int64_t source_of(const TensorView& source, std::int64_t r) {
  return static_cast<const std::int64_t*>(source.data)[r * source.stride[0]];
}

}  // namespace

Status unpermute_tokens_reference(const UnpermuteTokensArgs& args) {
  if (Status s = permute_op::check(args); !s) return s;
  if (Status s = check_source(args.source, args.weights); !s) return s;
  const std::int64_t tokens = args.out.shape[0], hidden = args.out.shape[1], k = args.weights.shape[1];
  std::vector<double> out(static_cast<std::size_t>(tokens * hidden));
  for (std::int64_t r = 0; r < args.rows.shape[0]; ++r) {
    const std::int64_t pair = source_of(args.source, r);
    if (pair < 0) continue;
    for (std::int64_t d = 0; d < hidden; ++d)
      out[std::size_t(pair / k * hidden + d)] += get(args.weights, pair / k, pair % k) * get(args.rows, r, d);
  }
  for (std::int64_t t = 0; t < tokens; ++t)
    for (std::int64_t d = 0; d < hidden; ++d) set(args.out, t, d, out[std::size_t(t * hidden + d)]);
  return Status::ok();
}

Status unpermute_tokens_backward_reference(const UnpermuteTokensBackwardArgs& args) {
  if (Status s = permute_op::check(args); !s) return s;
  if (Status s = check_source(args.source, args.weights); !s) return s;
  const std::int64_t tokens = args.grad_out.shape[0], hidden = args.grad_out.shape[1],
                     k = args.weights.shape[1];
  for (std::int64_t t = 0; args.grad_weights && t < tokens; ++t)
    for (std::int64_t j = 0; j < k; ++j) set(args.grad_weights, t, j, 0);
  for (std::int64_t r = 0; r < args.rows.shape[0]; ++r) {
    for (std::int64_t d = 0; args.grad_rows && d < hidden; ++d) set(args.grad_rows, r, d, 0);
    const std::int64_t pair = source_of(args.source, r);
    if (pair < 0) continue;
    const std::int64_t t = pair / k, j = pair % k;
    double dot = 0;
    for (std::int64_t d = 0; d < hidden; ++d) {
      const double g = get(args.grad_out, t, d);
      dot += g * get(args.rows, r, d);
      if (args.grad_rows) set(args.grad_rows, r, d, get(args.weights, t, j) * g);
    }
    if (args.grad_weights) set(args.grad_weights, t, j, dot);
  }
  return Status::ok();
}

}  // namespace tileformer
