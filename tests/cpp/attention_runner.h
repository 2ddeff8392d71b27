// Runs attention, forward and backward, on every unit that this machine can run, natively or emulated.
#pragma once

#include <string>
#include <type_traits>
#include <vector>

#include "guarded_memory.h"
#include "ops/attention/units.h"
#include "tileformer/attention_backward.h"

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

// Those that differ in this dtype: units of bf16 leave others to a unit that is a target too.
inline std::vector<Target> targets_of(DType dtype) {
  std::vector<Target> chosen;
  for (const Target& target : targets()) {
    if (dtype == DType::bf16 || !target.test_unit || !target.test_unit->bf16_only) chosen.push_back(target);
  }
  return chosen;
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
template <typename Args, typename Plan>
Status run_planned(const Target& target, const Args& args, Executor& executor, Edge workspace_edge,
                   Status (*make_plan)(const Args&, int threads, Plan*),
                   std::type_identity_t<Status (*)(const Args&, const Plan&, Workspace, Executor&)> run) {
  const Forced forced(target);
  if (!forced.status()) return forced.status();
  Plan plan;
  if (Status status = make_plan(args, executor.threads(), &plan); !status) return status;
  const GuardedMemory workspace(plan.workspace_bytes, workspace_edge);
  return run(args, plan, {workspace.data(), plan.workspace_bytes}, executor);
}

inline Status run_attention(const Target& target, const AttentionArgs& args,
                            Executor& executor = serial_executor(), Edge workspace_edge = Edge::end) {
  return run_planned(target, args, executor, workspace_edge, plan_attention, attention_forward);
}

// From the out and lse in args, that is, after run_attention.
inline Status run_backward(const Target& target, const AttentionBackwardArgs& args,
                           Executor& executor = serial_executor(), Edge workspace_edge = Edge::end) {
  return run_planned(target, args, executor, workspace_edge, plan_attention_backward, attention_backward);
}

}  // namespace tileformer::test
