// A callable on several workers.
#pragma once

#include "tileformer/executor.h"

namespace tileformer {

// Calls body(worker) for worker = 0 .. workers - 1; one worker, or none, runs on the calling thread.
template <class Body>
void run_workers(Executor& executor, int workers, Body body) {
  if (workers <= 1)
    body(0);
  else
    executor.run(
        workers, [](void* context, int worker) { (*static_cast<Body*>(context))(worker); }, &body);
}

}  // namespace tileformer
