// The public entries: check, find the rows of each token, sum them or spread their gradient.
#include <string>

#include "ops/moe/permute/check.h"
#include "ops/moe/permute/items.h"
#include "ops/moe/permute/row_map.h"
#include "ops/moe/permute/units.h"
#include "tileformer/workspace.h"

namespace tileformer {

using namespace permute_op;

namespace {

Rows rows_of(const TensorView& view) { return {view.data, view.stride[0]}; }

Weights weights_of(const TensorView& view) { return {view.data, view.dtype, view.stride[0], view.stride[1]}; }

// In scratch that the calling thread keeps.
Status find_rows(const TensorView& source, const TensorView& weights, TokenRows* map) {
  static thread_local ScratchBuffer scratch;
  const std::int64_t rows = source.shape[0], tokens = weights.shape[0], k = weights.shape[1];
  const std::size_t bytes = row_map_bytes(rows, tokens, k);
  const Workspace workspace = scratch.reserve(bytes);
  if (workspace.data == nullptr)
    return Status::out_of_memory("no memory for " + std::to_string(bytes) + " bytes of scratch");
  return map_rows(source, tokens, k, workspace.data, map);
}

}  // namespace

Status unpermute_tokens(const UnpermuteTokensArgs& args, Executor& executor) {
  if (args.rows && args.rows.dtype == DType::f64) return unpermute_tokens_reference(args);
  if (Status s = check(args); !s) return s;
  const Unit* unit = nullptr;
  if (Status s = units().choose(DType::f32, &unit); !s) return s;
  SumArgs k{};
  if (Status s = find_rows(args.source, args.weights, &k.map); !s) return s;
  k.rows = rows_of(args.rows);
  k.out = rows_of(args.out);
  k.dtype = args.rows.dtype;
  k.hidden = args.rows.shape[1];
  k.k = args.weights.shape[1];
  k.source = static_cast<const std::int64_t*>(args.source.data);
  k.source_stride = args.source.stride[0];
  k.weights = weights_of(args.weights);
  const std::int64_t row_bytes = k.hidden * static_cast<std::int64_t>(size_of(k.dtype));
  run_items(unit->sum, k, args.out.shape[0], (k.k + 1) * row_bytes, executor);
  return Status::ok();
}

Status unpermute_tokens_backward(const UnpermuteTokensBackwardArgs& args, Executor& executor) {
  if (args.rows && args.rows.dtype == DType::f64) return unpermute_tokens_backward_reference(args);
  if (Status s = check(args); !s) return s;
  const Unit* unit = nullptr;
  if (Status s = units().choose(DType::f32, &unit); !s) return s;
  SpreadArgs k{};
  if (Status s = find_rows(args.source, args.weights, &k.map); !s) return s;
  k.rows = rows_of(args.rows);
  k.grad_out = rows_of(args.grad_out);
  k.grad_rows = rows_of(args.grad_rows);
  k.dtype = args.rows.dtype;
  k.hidden = args.rows.shape[1];
  k.tokens = args.weights.shape[0];
  k.k = args.weights.shape[1];
  k.source = static_cast<const std::int64_t*>(args.source.data);
  k.source_stride = args.source.stride[0];
  k.weights = weights_of(args.weights);
  k.grad_weights = weights_of(args.grad_weights);
  const std::int64_t row_bytes = k.hidden * static_cast<std::int64_t>(size_of(k.dtype));
  const std::int64_t without_token = args.rows.shape[0] - k.map.begin[k.tokens];
  run_items(unit->spread, k, k.tokens + without_token, (2 * k.k + 1) * row_bytes, executor);
  return Status::ok();
}

}  // namespace tileformer
