// The order in which tasks add to memory that they share: that of the work list, whoever runs them, so that
// sums are always rounded in the same order. Workers take tasks in the same order, so whoever waits, waits
// for tasks that are being run. Included by kernels only.
#pragma once

#include <sched.h>

#include "ops/attention/backward/lanes.h"

namespace tileformer::TILEFORMER_UNIT {

// Until every task of [begin, end) has left the key block. *finished: tasks before it are known to be done.
TF_NOINLINE void wait_for_tasks(const BackwardKernelArgs& a, std::int64_t begin, std::int64_t end,
                                std::int64_t block, std::int64_t* finished) {
  while (*finished < end && __atomic_load_n(a.progress + *finished, __ATOMIC_ACQUIRE) == INT64_MAX)
    ++*finished;
  for (std::int64_t t = max_of(begin, *finished); t < end; ++t)
    for (int spin = 0; __atomic_load_n(a.progress + t, __ATOMIC_ACQUIRE) <= block; ++spin) {
      pause_cpu();
      if (spin > 1000) sched_yield();  // more threads than cores
    }
}
TF_INLINE void leave_block(const BackwardKernelArgs& a, std::int64_t task, std::int64_t block) {
  __atomic_store_n(a.progress + task, block + 1, __ATOMIC_RELEASE);
}
TF_INLINE void leave_task(const BackwardKernelArgs& a, std::int64_t task) {
  __atomic_store_n(a.progress + task, INT64_MAX, __ATOMIC_RELEASE);
}

TF_INLINE bool touches(const BackwardTask& t, std::int64_t block) {
  return t.block_begin <= block && block < t.block_end;
}
TF_INLINE bool any_touches(const BackwardKernelArgs& a, std::int64_t begin, std::int64_t end,
                           std::int64_t block) {
  for (std::int64_t t = begin; t < end; ++t)
    if (touches(a.tasks[t], block)) return true;
  return false;
}

}  // namespace tileformer::TILEFORMER_UNIT
