// What a fuzzer does with one problem on every target.
#pragma once

#include <string>
#include <vector>

#include "attention_runner.h"

namespace tileformer::test {

// Computes on each target and compares; run returns the Status of the call. Empty if every one is right.
template <typename Data, typename Accuracy, typename Run>
std::string failure_on(const std::vector<Target>& targets, const Data& data, const Accuracy& accuracy,
                       Run run) {
  if (!accuracy.status) return "reference: " + accuracy.status.message();
  for (const Target& target : targets) {
    data.clear_outputs();
    const Status status = run(target);
    const std::string failure = status ? accuracy.failure(data.args) : status.message();
    if (!failure.empty()) return "on " + target.name + ": " + failure;
    if (!data.clear_outputs()) return "on " + target.name + ": wrote between the elements of an output";
  }
  return "";
}

}  // namespace tileformer::test
