// The public entry: check, choose the unit, share the rows out.
#include "tileformer/cross_entropy.h"

#include <algorithm>
#include <string>

#include "base/run_workers.h"
#include "ops/cross_entropy/check.h"
#include "ops/cross_entropy/units.h"

namespace tileformer {

using namespace cross_entropy_op;

namespace {

// A worker takes so many logits at a time: some 30 us of work, beside which the shared counter costs nothing.
constexpr std::int64_t kLogitsPerItem = 32768;

float* floats(const TensorView& view) { return view ? static_cast<float*>(view.data) : nullptr; }

}  // namespace

Status cross_entropy(const CrossEntropyArgs& args, Executor& executor) {
  if (args.logits && args.logits.dtype == DType::f64) return cross_entropy_reference(args);
  if (Status s = check(args); !s) return s;
  const Unit* unit = nullptr;
  if (Status s = units().choose(args.logits.dtype, &unit); !s) return s;

  KernelArgs k{};
  k.logits = args.logits.data;
  k.dtype = args.logits.dtype;
  k.rows = args.logits.shape[0];
  k.vocab = args.logits.shape[1];
  k.row_stride = args.logits.stride[0];
  k.target = static_cast<const std::int64_t*>(args.target.data);
  k.target_stride = args.target.stride[0];
  k.ignore_index = args.ignore_index;
  k.loss = floats(args.loss);
  k.lse = floats(args.lse);
  k.row_scale = floats(args.row_scale);
  k.loss_stride = args.loss.stride[0];
  k.lse_stride = args.lse.stride[0];
  k.row_scale_stride = args.row_scale.stride[0];
  k.gradient = args.gradient;
  k.label_smoothing = static_cast<float>(args.label_smoothing);
  k.z_loss = static_cast<float>(args.z_loss);
  k.softcap = static_cast<float>(args.softcap);
  if (k.rows == 0) return Status::ok();

  std::int64_t next_row = 0;
  k.next_row = &next_row;
  k.rows_per_item = std::max<std::int64_t>(1, kLogitsPerItem / k.vocab);
  const std::int64_t items = (k.rows + k.rows_per_item - 1) / k.rows_per_item;
  const int workers = static_cast<int>(std::min<std::int64_t>(items, executor.threads()));
  run_workers(executor, workers, [&](int) { unit->run(k); });
  return Status::ok();
}

}  // namespace tileformer
