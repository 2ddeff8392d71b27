// Runs operators on torch's own thread pool: torch.set_num_threads rules and no second pool is started.
#pragma once

#include <torch/csrc/stable/ops.h>

#include "tileformer/executor.h"

namespace tileformer::torch_binding {

class TorchExecutor final : public Executor {
 public:
  int threads() const override { return static_cast<int>(torch::stable::get_num_threads()); }

  void run(int workers, void (*body)(void* context, int worker), void* context) override {
    if (workers <= 1) {  // an empty parallel region costs about 10 us
      body(context, 0);
      return;
    }
    torch::stable::parallel_for(0, workers, 1, [body, context](std::int64_t begin, std::int64_t end) {
      for (std::int64_t worker = begin; worker < end; ++worker) body(context, static_cast<int>(worker));
    });
  }
};

}  // namespace tileformer::torch_binding
