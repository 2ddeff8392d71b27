// Workers one after the other, the last first: as legal as any schedule.
#pragma once

#include "tileformer/executor.h"

namespace tileformer::test {

class ReversedExecutor : public Executor {
 public:
  int threads() const override { return 3; }
  void run(int workers, void (*body)(void* context, int worker), void* context) override {
    for (int worker = workers - 1; worker >= 0; --worker) body(context, worker);
  }
};

}  // namespace tileformer::test
