// What a fuzzer does with one problem on every target.
#pragma once

#include <string>
#include <vector>

#include "unit_targets.h"

namespace tileformer::test {

// Computes on each target and compares; run returns the Status of the call. Empty if every one is right.
template <typename Unit, typename Data, typename Args, typename Accuracy, typename Run>
std::string failure_on(const std::vector<UnitTarget<Unit>>& targets, const Data& data, const Args& args,
                       const Accuracy& accuracy, Run run) {
  if (!accuracy.status) return "reference: " + accuracy.status.message();
  for (const UnitTarget<Unit>& target : targets) {
    data.clear_outputs();
    const Status status = run(target);
    const std::string failure = status ? accuracy.failure(args) : status.message();
    if (!failure.empty()) return "on " + target.name + ": " + failure;
    if (!data.clear_outputs()) return "on " + target.name + ": wrote between the elements of an output";
  }
  return "";
}

}  // namespace tileformer::test
