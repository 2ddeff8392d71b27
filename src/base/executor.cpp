#include "tileformer/executor.h"

#include <algorithm>
#include <atomic>
#include <cassert>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#include "base/topology.h"

namespace tileformer {
namespace {

using Body = void (*)(void* context, int worker);

void run_serially(int workers, Body body, void* context) {
  for (int worker = 0; worker < workers; ++worker) body(context, worker);
}

class SerialExecutor final : public Executor {
 public:
  int threads() const override { return 1; }
  void run(int workers, Body body, void* context) override { run_serially(workers, body, context); }
};

void pause_briefly() {
#if defined(__x86_64__)
  __asm__ volatile("pause");
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

// True on a thread that executes a body of some pool. A run() from there runs serially: its pool may be the
// one that waits for this body.
thread_local bool inside_body = false;

class ThreadPool final : public Executor {
 public:
  explicit ThreadPool(int threads);
  ~ThreadPool() override;

  int threads() const override { return static_cast<int>(helpers_.size()) + 1; }
  void run(int workers, Body body, void* context) override;

 private:
  // A job is announced by its ticket: a serial number in the upper bits, the number of its workers in the
  // lower 16. A helper that is not among the workers goes back to waiting without a look at body_ and
  // context_, which already may belong to the next job. No workers: the pool ends.
  using Ticket = std::uint64_t;
  static constexpr int kWorkerBits = 16, kMaxThreads = 1 << 10;
  static int workers_of(Ticket ticket) { return static_cast<int>(ticket & ((1u << kWorkerBits) - 1)); }

  void help(int worker);
  void announce(int workers);
  Ticket wait_for_other_than(Ticket seen);
  void wait_until_finished();

  // Spins before a thread sleeps, some 50 to 200 us: longer than the gap between two operators of a model, so
  // that a job seldom pays for a wake-up (5 us and more per thread).
  static constexpr int kSpins = 4000;
  int spins_ = kSpins;

  std::mutex one_run_;  // held through a run()
  Body body_ = nullptr;
  void* context_ = nullptr;
  std::atomic<int> unfinished_{0};

  std::mutex mutex_;  // guards changes of ticket_ and of sleepers_, and the last decrement of unfinished_
  std::condition_variable announced_, finished_;
  std::atomic<Ticket> ticket_{0};
  int sleepers_ = 0;

  std::vector<std::thread> helpers_;
};

ThreadPool::ThreadPool(int threads) {
  const int usable = cpu_topology().usable_cores;
  threads = std::min(threads > 0 ? threads : usable, kMaxThreads);
  // With more threads than cores a spinning thread takes the core of one that works.
  if (threads > usable) spins_ = 0;
  helpers_.reserve(threads - 1);
  try {
    for (int worker = 1; worker < threads; ++worker) helpers_.emplace_back(&ThreadPool::help, this, worker);
  } catch (const std::system_error&) {
    // The system grants no more threads: the pool is smaller, and threads() says so.
  }
}

ThreadPool::~ThreadPool() {
  announce(0);
  for (std::thread& helper : helpers_) helper.join();
}

void ThreadPool::run(int workers, Body body, void* context) {
  assert(workers <= threads());
  if (workers <= 1 || inside_body) return run_serially(workers, body, context);
  std::lock_guard<std::mutex> only(one_run_);
  body_ = body;
  context_ = context;
  unfinished_.store(workers - 1, std::memory_order_relaxed);
  announce(workers);
  inside_body = true;
  body(context, 0);
  inside_body = false;
  wait_until_finished();
}

void ThreadPool::announce(int workers) {
  bool wake;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    const Ticket serial = (ticket_.load(std::memory_order_relaxed) >> kWorkerBits) + 1;
    ticket_.store(serial << kWorkerBits | static_cast<Ticket>(workers), std::memory_order_release);
    wake = sleepers_ > 0;
  }
  if (wake) announced_.notify_all();
}

ThreadPool::Ticket ThreadPool::wait_for_other_than(Ticket seen) {
  for (int spin = 0; spin < spins_; ++spin) {
    const Ticket ticket = ticket_.load(std::memory_order_acquire);
    if (ticket != seen) return ticket;
    pause_briefly();
  }
  std::unique_lock<std::mutex> lock(mutex_);
  ++sleepers_;
  announced_.wait(lock, [&] { return ticket_.load(std::memory_order_relaxed) != seen; });
  --sleepers_;
  return ticket_.load(std::memory_order_relaxed);
}

void ThreadPool::wait_until_finished() {
  for (int spin = 0; spin < spins_; ++spin) {
    if (unfinished_.load(std::memory_order_acquire) == 0) return;
    pause_briefly();
  }
  std::unique_lock<std::mutex> lock(mutex_);
  finished_.wait(lock, [&] { return unfinished_.load(std::memory_order_acquire) == 0; });
}

void ThreadPool::help(int worker) {
  inside_body = true;
  Ticket ticket = 0;
  for (;;) {
    ticket = wait_for_other_than(ticket);
    const int workers = workers_of(ticket);
    if (workers == 0) return;
    if (worker >= workers) continue;
    body_(context_, worker);
    if (unfinished_.fetch_sub(1, std::memory_order_acq_rel) == 1) {
      // Under the mutex, so that it cannot fall between the caller's last look and its sleep.
      std::lock_guard<std::mutex> lock(mutex_);
      finished_.notify_one();
    }
  }
}

}  // namespace

Executor& serial_executor() {
  static SerialExecutor executor;
  return executor;
}

std::unique_ptr<Executor> make_thread_pool(int threads) { return std::make_unique<ThreadPool>(threads); }

}  // namespace tileformer
