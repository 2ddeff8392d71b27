// Runs attention_forward on every unit that this machine can run, natively or emulated.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "guarded_memory.h"
#include "ops/attention/units.h"
#include "tileformer/attention.h"

namespace tileformer::test {

// An ISA by its name, or a unit that exists for tests only.
struct Target {
  std::string name;
  const attention::Unit* test_unit = nullptr;
};

inline const std::vector<Target>& targets() {
  static const std::vector<Target> all = [] {
    std::vector<Target> found;
    for (Isa isa : supported_isas()) found.push_back({name_of(isa)});
    for (const char* name : {"amx_emulated", "avx512_fma_simde", "avx512_bf16_simde"}) {
      if (const attention::Unit* unit = attention::find_unit(name)) found.push_back({name, unit});
    }
    return found;
  }();
  return all;
}

// While it lives, calls of this thread run on the target.
class Forced {
 public:
  explicit Forced(const Target& target) : status_(force_isa(target.test_unit ? "" : target.name)) {
    attention::force_unit(target.test_unit);
  }
  ~Forced() {
    attention::force_unit(nullptr);
    status_ = force_isa("");
  }
  Forced(const Forced&) = delete;
  Forced& operator=(const Forced&) = delete;
  const Status& status() const { return status_; }

 private:
  Status status_;
};

// Plans and runs with exactly the workspace that the plan asks for, filled with NaN.
inline Status run_attention(const Target& target, const AttentionArgs& args,
                            Executor& executor = serial_executor(), Edge workspace_edge = Edge::end) {
  const Forced forced(target);
  if (!forced.status()) return forced.status();
  AttentionPlan plan;
  if (Status status = plan_attention(args, executor.threads(), &plan); !status) return status;
  const GuardedMemory workspace(plan.workspace_bytes, workspace_edge);
  return attention_forward(args, plan, {workspace.data(), plan.workspace_bytes}, executor);
}

}  // namespace tileformer::test
