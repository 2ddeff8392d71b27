// Every worker runs exactly once, writes are visible after run(), no wake-up is lost. Meant to run under TSan
// too.
#include "tileformer/executor.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "base/topology.h"

namespace tileformer {
namespace {

template <class F>
void run(Executor& executor, int workers, F body) {
  executor.run(
      workers, [](void* context, int worker) { (*static_cast<F*>(context))(worker); }, &body);
}

// Plain ints: a worker that runs twice, or late, is a data race that TSan reports.
void expect_each_worker_once(Executor& executor, int workers) {
  std::vector<int> calls(workers, 0);
  run(executor, workers, [&](int worker) { ++calls[worker]; });
  for (int worker = 0; worker < workers; ++worker) ASSERT_EQ(calls[worker], 1) << worker << " of " << workers;
}

TEST(SerialExecutor, RunsEveryWorkerInOrderOnTheCallingThread) {
  EXPECT_EQ(serial_executor().threads(), 1);
  std::vector<int> order;
  run(serial_executor(), 3, [&](int worker) { order.push_back(worker); });
  EXPECT_EQ(order, (std::vector<int>{0, 1, 2}));
}

TEST(ThreadPool, HasTheThreadsThatWereAskedFor) {
  EXPECT_EQ(make_thread_pool(3)->threads(), 3);
  EXPECT_EQ(make_thread_pool(1)->threads(), 1);
  EXPECT_EQ(make_thread_pool()->threads(), cpu_topology().usable_cores);
}

TEST(ThreadPool, RunsEveryWorkerOnce) {
  const auto pool = make_thread_pool(4);
  for (int round = 0; round < 2000; ++round) expect_each_worker_once(*pool, round % 5);
}

// The pool spins only where it has a core for every thread; this size covers that path on a machine with two.
TEST(ThreadPool, RunsEveryWorkerOnceWithTwoThreads) {
  const auto pool = make_thread_pool(2);
  for (int round = 0; round < 5000; ++round) expect_each_worker_once(*pool, 2);
}

TEST(ThreadPool, WakesThreadsThatSleep) {
  const auto pool = make_thread_pool(2);
  for (int round = 0; round < 20; ++round) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    expect_each_worker_once(*pool, 2);
  }
}

TEST(ThreadPool, WaitsForASlowWorker) {
  const auto pool = make_thread_pool(2);
  int done = 0;
  run(*pool, 2, [&](int worker) {
    if (worker == 0) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    done = 1;
  });
  EXPECT_EQ(done, 1);
}

TEST(ThreadPool, WorkersRunAtTheSameTime) {
  const auto pool = make_thread_pool(2);
  std::atomic<int> arrived{0};
  run(*pool, 2, [&](int) {
    ++arrived;
    while (arrived.load() < 2) std::this_thread::yield();
  });
  EXPECT_EQ(arrived.load(), 2);
}

TEST(ThreadPool, ANestedRunIsSerial) {
  const auto pool = make_thread_pool(3);
  std::vector<std::vector<std::thread::id>> threads(3);
  run(*pool, 3,
      [&](int outer) { run(*pool, 3, [&](int) { threads[outer].push_back(std::this_thread::get_id()); }); });
  for (const auto& ids : threads) {
    ASSERT_EQ(ids.size(), 3u);
    EXPECT_EQ(ids[0], ids[1]);
    EXPECT_EQ(ids[0], ids[2]);
  }
}

TEST(ThreadPool, ConcurrentCallersTakeTurns) {
  const auto pool = make_thread_pool(2);
  std::atomic<int> inside{0}, total{0};
  std::atomic<bool> overlapped{false};
  std::vector<std::thread> callers;
  for (int caller = 0; caller < 3; ++caller) {
    callers.emplace_back([&] {
      for (int round = 0; round < 300; ++round) {
        run(*pool, 2, [&](int) {
          if (++inside > 2) overlapped = true;
          ++total;
          --inside;
        });
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_FALSE(overlapped);
  EXPECT_EQ(total.load(), 3 * 300 * 2);
}

TEST(ThreadPool, EndsWhileItsThreadsSpinOrSleep) {
  for (int round = 0; round < 50; ++round) {
    const auto pool = make_thread_pool(1 + round % 4);
    if (round % 2) expect_each_worker_once(*pool, pool->threads());
    if (round % 10 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
}

}  // namespace
}  // namespace tileformer
