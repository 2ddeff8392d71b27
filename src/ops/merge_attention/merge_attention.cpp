// The public entry: check, choose the unit, share the rows out.
#include "tileformer/merge_attention.h"

#include <algorithm>
#include <string>

#include "base/operand.h"
#include "base/run_workers.h"
#include "ops/merge_attention/check.h"
#include "ops/merge_attention/units.h"

namespace tileformer {

using namespace merge_attention;

namespace {

// A worker takes so many elements at a time: some 10 us of work, beside which the shared counter costs
// nothing.
constexpr std::int64_t kElementsPerItem = 65536;

std::vector<Operand> operands(const std::vector<TensorView>& views) {
  std::vector<Operand> all;
  for (const TensorView& view : views) all.push_back(operand(view));
  return all;
}

}  // namespace

Status merge_attention_states(const MergeAttentionArgs& args, Executor& executor) {
  if (args.out.dtype == DType::f64) return merge_attention_states_reference(args);
  if (Status s = check(args); !s) return s;
  if (args.out.elements() == 0 && args.out.shape[3] != 0) return Status::ok();
  const Unit* unit = nullptr;
  if (Status s = units().choose(DType::f32, &unit); !s) return s;

  const std::vector<Operand> outs = operands(args.part_out), lses = operands(args.part_lse);
  KernelArgs k{};
  k.part_out = outs.data();
  k.part_lse = lses.data();
  k.parts = static_cast<std::int64_t>(outs.size());
  k.out = operand(args.out);
  k.lse = operand(args.lse);
  k.batch = args.out.shape[0];
  k.heads = args.out.shape[1];
  k.seq = args.out.shape[2];
  k.dim_v = args.out.shape[3];

  std::int64_t next_row = 0;
  k.next_row = &next_row;
  k.rows_per_item =
      std::max<std::int64_t>(1, kElementsPerItem / (k.parts * std::max<std::int64_t>(k.dim_v, 1)));
  const std::int64_t items = (k.batch * k.heads * k.seq + k.rows_per_item - 1) / k.rows_per_item;
  const int workers = static_cast<int>(std::min<std::int64_t>(items, executor.threads()));
  run_workers(executor, workers, [&](int) { unit->run(k); });
  return Status::ok();
}

}  // namespace tileformer
