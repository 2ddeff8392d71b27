// Random problems of experts on every target: the output, or for every other seed the gradients, against the
// exact ones.
#include <string>

#include "fused_experts_accuracy.h"
#include "fused_experts_runner.h"
#include "fuzz.h"
#include "fuzz_targets.h"
#include "random_experts.h"
#include "reversed_executor.h"

namespace tileformer::test {
namespace {

Edge edge_of(std::uint64_t seed) { return seed / 2 % 2 == 0 ? Edge::begin : Edge::end; }

std::string forward_failure(const ExpertsCase& c, DType dtype, std::uint64_t seed) {
  const ExpertsData data(c, dtype, edge_of(seed), seed);
  const ExpertsAccuracy accuracy(data.args, kRandomFactor);
  ReversedExecutor reversed;
  return failure_on(experts_targets(dtype), data, data.args, accuracy,
                    [&](const ExpertsTarget& target) { return run_experts(target, data.args, reversed); });
}

std::string backward_failure(const ExpertsCase& c, DType dtype, std::uint64_t seed) {
  const ExpertsBackwardData data(c, dtype, edge_of(seed), seed, seed % 3 == 0);
  FusedExpertsBackwardArgs args = data.backward;
  // A stored gate_up is read by every target, and no output of any.
  std::vector<std::uint8_t> copy;
  if (c.store) {
    const Status status = fused_experts_reference(data.args);
    if (!status) return "reference: " + status.message();
    const auto size = static_cast<std::int64_t>(size_of(dtype));
    const TensorView& view = data.args.gate_up_out;
    copy.resize(static_cast<std::size_t>(view.elements() * size) + 1);
    args.forward.gate_up_out = TensorView::dense(copy.data(), dtype, {view.shape[0], view.shape[1]});
    for_each_index(view, [&](const Index& at) { set(args.forward.gate_up_out, at, get(view, at)); });
  }
  const ExpertsBackwardAccuracy accuracy(args, kRandomFactor);
  ReversedExecutor reversed;
  return failure_on(experts_targets(dtype), data, args, accuracy, [&](const ExpertsTarget& target) {
    return run_experts_backward(target, args, reversed);
  });
}

// Empty if every target is right.
std::string failure_of(std::uint64_t seed) {
  RandomExperts random(seed);
  const DType dtype = random.dtype();
  const bool backward = seed % 2 == 0;
  const ExpertsCase c = random.make(backward);
  const std::string failure = backward ? backward_failure(c, dtype, seed) : forward_failure(c, dtype, seed);
  return failure.empty() ? "" : c.name + " " + name_of(dtype) + (backward ? " backward " : " ") + failure;
}

}  // namespace
}  // namespace tileformer::test

int main(int argc, char** argv) {
  return tileformer::test::fuzz_main(argc, argv, tileformer::test::failure_of);
}
