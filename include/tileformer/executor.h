// How an operator runs in parallel. The library starts no thread on its own: it is handed an Executor.
#pragma once

#include <memory>

namespace tileformer {

class Executor {
 public:
  virtual ~Executor() = default;

  // The most workers that run() can have at the same time, at least 1.
  virtual int threads() const = 0;

  // Calls body(context, worker) for worker = 0 .. workers-1 and returns when all calls have returned. Calls
  // may be concurrent or one after the other. workers is at most threads(). body does not throw.
  virtual void run(int workers, void (*body)(void* context, int worker), void* context) = 0;
};

// Runs everything on the calling thread.
Executor& serial_executor();

// A pool of `threads` workers (the calling thread is one of them); threads <= 0 takes all cores that the
// process may use. One run() at a time: concurrent callers wait for each other.
std::unique_ptr<Executor> make_thread_pool(int threads = 0);

}  // namespace tileformer
