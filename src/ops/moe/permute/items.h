// Rows shared out among workers.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/run_workers.h"
#include "ops/moe/permute/kernel_args.h"

namespace tileformer::permute_op {

// A worker takes so many bytes of rows at a time: some 10 us of work, beside which the shared counter costs
// nothing.
constexpr std::int64_t kBytesPerItem = 128 << 10;

// Runs kernel(args) on the workers that `count` items of so many bytes deserve.
template <class Args>
void run_items(void (*kernel)(const Args&), Args& args, std::int64_t count, std::int64_t bytes_each,
               Executor& executor) {
  std::int64_t next = 0;
  const std::int64_t step = std::max<std::int64_t>(1, kBytesPerItem / std::max<std::int64_t>(1, bytes_each));
  args.items = {count, step, &next};
  const std::int64_t pieces = (count + step - 1) / step;
  const int workers = static_cast<int>(std::min<std::int64_t>(pieces, executor.threads()));
  run_workers(executor, workers, [&](int) { kernel(args); });
}

}  // namespace tileformer::permute_op
