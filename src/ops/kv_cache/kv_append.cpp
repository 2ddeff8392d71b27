// The public entries: check, choose the unit, share the tokens out.
#include "tileformer/kv_append.h"

#include <algorithm>
#include <string>

#include "base/run_workers.h"
#include "base/topology.h"
#include "ops/kv_cache/check.h"
#include "ops/kv_cache/units.h"

namespace tileformer {

using namespace kv_cache;

namespace {

// A worker takes so much at a time: some 10 us of work. Less in all runs on the calling thread, which is done
// before another one would have woken up.
constexpr std::int64_t kBytesPerItem = 128 << 10;
constexpr std::int64_t kTokensPerBlock = 8;  // the kernel's

void set_source(Rows* rows, const TensorView& from) {
  rows->from = from.data;
  rows->from_dtype = from.dtype;
  rows->from_token = from.stride[0];
  rows->from_head = from.stride[1];
  rows->dim = from.shape[2];
}

Rows rows_of(const TensorView& from, const TensorView& pages, const TensorView& scale) {
  Rows rows{};
  set_source(&rows, from);
  rows.to = pages.data;
  rows.to_dtype = pages.dtype;
  rows.to_page = pages.stride[0];
  rows.to_head = pages.stride[1];
  rows.to_row = pages.stride[2];
  if (scale) {
    rows.scale = static_cast<float*>(scale.data);
    rows.scale_page = scale.stride[0];
    rows.scale_head = scale.stride[1];
    rows.scale_row = scale.stride[2];
  }
  return rows;
}

RotaryRows rotary_of(const Rotary& rotary) {
  RotaryRows r{};
  if (!rotary.cos || rotary.cos.shape[1] == 0) return r;
  r.cos = rotary.cos.data;
  r.sin = rotary.sin.data;
  r.dtype = rotary.cos.dtype;
  r.cos_row = rotary.cos.stride[0];
  r.sin_row = rotary.sin.stride[0];
  r.positions = static_cast<const std::int64_t*>(rotary.positions.data);
  r.positions_stride = rotary.positions.stride[0];
  r.half = rotary.cos.shape[1];
  r.interleaved = rotary.interleaved;
  return r;
}

Status run(KernelArgs& k, Executor& executor) {
  if (k.tokens == 0 || k.heads == 0) return Status::ok();
  const Unit* unit = nullptr;
  if (Status s = units().choose(k.rows[0].from_dtype, &unit); !s) return s;

  std::int64_t token_bytes = 0;
  for (int i = 0; i < k.tensors; ++i)
    token_bytes += k.heads * k.rows[i].dim * std::int64_t(size_of(k.rows[i].from_dtype));
  const std::int64_t blocks = std::max<std::int64_t>(1, kBytesPerItem / token_bytes / kTokensPerBlock);
  std::int64_t written = 0;
  for (int i = 0; i < k.tensors; ++i)
    written += k.tokens * k.heads * k.rows[i].dim * std::int64_t(size_of(k.rows[i].to_dtype));
  k.stream = forced_stream() == Stream::always || written >= static_cast<std::int64_t>(cpu_topology().l3 / 2);
  k.tokens_per_item = blocks * kTokensPerBlock;
  std::int64_t next_token = 0;
  k.next_token = &next_token;
  const std::int64_t items = (k.tokens + k.tokens_per_item - 1) / k.tokens_per_item;
  const int workers = static_cast<int>(std::min<std::int64_t>(items, executor.threads()));
  run_workers(executor, workers, [&](int) { unit->run(k); });
  return Status::ok();
}

}  // namespace

Status append_kv(const AppendArgs& args, Executor& executor) {
  if (Status s = check(args); !s) return s;
  KernelArgs k{};
  k.rows[0] = rows_of(args.key, args.key_pages, args.key_scale);
  if (args.value) k.rows[1] = rows_of(args.value, args.value_pages, args.value_scale);
  k.tensors = args.value ? 2 : 1;
  k.tokens = args.key.shape[0];
  k.heads = args.key.shape[1];
  k.page_size = args.key_pages.shape[2];
  k.slots = static_cast<const std::int64_t*>(args.slots.data);
  k.slots_stride = args.slots.stride[0];
  k.rotary = rotary_of(args.rotary);
  return run(k, executor);
}

// Pages of one row, one for each token.
Status apply_rotary(const RotaryArgs& args, Executor& executor) {
  if (Status s = check(args); !s) return s;
  KernelArgs k{};
  set_source(&k.rows[0], args.in);
  k.rows[0].to = args.out.data;
  k.rows[0].to_dtype = args.out.dtype;
  k.rows[0].to_page = args.out.stride[0];
  k.rows[0].to_head = args.out.stride[1];
  k.tensors = 1;
  k.tokens = args.in.shape[0];
  k.heads = args.in.shape[1];
  k.page_size = 1;
  k.rotary = rotary_of(args.rotary);
  return run(k, executor);
}

}  // namespace tileformer
