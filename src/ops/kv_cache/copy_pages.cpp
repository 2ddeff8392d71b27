#include <algorithm>
#include <atomic>
#include <cstring>

#include "base/run_workers.h"
#include "ops/kv_cache/check.h"

namespace tileformer {
namespace {

struct Job {
  std::span<const TensorView> pools;
  std::span<const PageCopy> copies;
  std::atomic<std::size_t> next{0};  // pool by pool, copy by copy
};

void copy_page(const TensorView& pool, const PageCopy& copy) {
  const std::int64_t row = pool.rank == 4 ? pool.shape[3] : 1;
  const std::int64_t row_stride = pool.stride[2];
  const auto size = static_cast<std::int64_t>(size_of(pool.dtype));
  auto* const base = static_cast<std::uint8_t*>(pool.data);
  for (std::int64_t head = 0; head < pool.shape[1]; ++head) {
    const std::uint8_t* from = base + (copy.from * pool.stride[0] + head * pool.stride[1]) * size;
    std::uint8_t* to = base + (copy.to * pool.stride[0] + head * pool.stride[1]) * size;
    const bool dense = row_stride == row;
    const std::int64_t run = dense ? copy.rows * row : row, runs = dense ? 1 : copy.rows;
    for (std::int64_t i = 0; i < runs; ++i, from += row_stride * size, to += row_stride * size)
      std::memcpy(to, from, static_cast<std::size_t>(run * size));
  }
}

void work(Job& job) {
  const std::size_t items = job.pools.size() * job.copies.size();
  for (;;) {
    const std::size_t item = job.next.fetch_add(1, std::memory_order_relaxed);
    if (item >= items) return;
    copy_page(job.pools[item / job.copies.size()], job.copies[item % job.copies.size()]);
  }
}

// Below this the calling thread has finished before another one would have woken up.
constexpr std::int64_t kWorthThreads = 256 << 10;

}  // namespace

Status copy_pages(std::span<const TensorView> pools, std::span<const PageCopy> copies, Executor& executor) {
  if (Status s = kv_cache::check_copies(pools, copies); !s) return s;
  std::int64_t bytes = 0;
  for (const TensorView& pool : pools) {
    if (pool.shape[0] == 0) return Status::ok();  // no pages, so no copies
    const std::int64_t row = pool.elements() / pool.shape[0] / std::max<std::int64_t>(1, pool.shape[2]);
    for (const PageCopy& copy : copies) bytes += copy.rows * row * std::int64_t(size_of(pool.dtype));
  }
  if (bytes == 0) return Status::ok();
  Job job{pools, copies};
  const auto items = static_cast<std::int64_t>(pools.size() * copies.size());
  const int workers = bytes < kWorthThreads ? 1 : int(std::min<std::int64_t>(items, executor.threads()));
  run_workers(executor, workers, [&](int) { work(job); });
  return Status::ok();
}

}  // namespace tileformer
