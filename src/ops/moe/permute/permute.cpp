// The public entry: check, sort the pairs, copy their rows.
#include <string>

#include "base/topology.h"
#include "ops/moe/dispatch.h"
#include "ops/moe/permute/check.h"
#include "ops/moe/permute/items.h"
#include "ops/moe/permute/units.h"
#include "tileformer/workspace.h"

namespace tileformer {

using namespace permute_op;

Status permute_tokens(const PermuteTokensArgs& args, Executor& executor) {
  if (Status s = check(args); !s) return s;
  const Unit* unit = nullptr;
  if (Status s = units().choose(DType::f32, &unit); !s) return s;
  const std::int64_t num_experts = args.counts.shape[0], pairs = args.experts.elements();

  static thread_local ScratchBuffer scratch;
  const std::size_t offset_bytes = static_cast<std::size_t>(num_experts + 2) * sizeof(std::int64_t);
  const std::size_t bytes = offset_bytes + static_cast<std::size_t>(pairs) * sizeof(moe::Pair);
  const Workspace workspace = scratch.reserve(bytes);
  if (workspace.data == nullptr)
    return Status::out_of_memory("no memory for " + std::to_string(bytes) + " bytes of scratch");
  const moe::Dispatch sorted{static_cast<std::int64_t*>(workspace.data),
                             reinterpret_cast<moe::Pair*>(static_cast<char*>(workspace.data) + offset_bytes)};
  if (Status s = moe::dispatch(args.experts, num_experts, sorted); !s) return s;
  auto* const counts = static_cast<std::int64_t*>(args.counts.data);
  for (std::int64_t e = 0; e < num_experts; ++e) counts[e] = sorted.offset[e + 1] - sorted.offset[e];

  CopyArgs k{};
  k.element_size = static_cast<int>(size_of(args.tokens.dtype));
  k.row_bytes = args.tokens.shape[1] * k.element_size;
  k.tokens = {args.tokens.data, args.tokens.stride[0]};
  k.rows = {args.rows.data, args.rows.stride[0]};
  k.pair = sorted.pair;
  k.pairs = sorted.offset[num_experts];
  k.k = args.experts.shape[1];
  k.source = static_cast<std::int64_t*>(args.source.data);
  // What the last cache does not hold until it is read again need not go through it.
  k.stream = static_cast<std::size_t>(pairs * k.row_bytes) > cpu_topology().l3 / 2;
  run_items(unit->copy, k, pairs, k.row_bytes, executor);
  return Status::ok();
}

}  // namespace tileformer
