// The gradients of random problems on every target against the exact ones.
#include <string>

#include "attention_backward_accuracy.h"
#include "attention_backward_data.h"
#include "attention_runner.h"
#include "fuzz.h"
#include "fuzz_targets.h"
#include "random_case.h"
#include "reversed_executor.h"

namespace tileformer::test {
namespace {

// Empty if every target is right.
std::string failure_of(std::uint64_t seed) {
  RandomCase random(seed);
  const DType dtype = random.dtype();
  const AttentionCase c = random.make();
  const AttentionBackwardData data(c, dtype, seed % 2 == 0 ? Edge::begin : Edge::end, seed);
  const BackwardAccuracy accuracy(data.args, kRandomFactor);
  ReversedExecutor reversed;
  const std::string failure =
      failure_on(targets_of(dtype), data, data.args, accuracy, [&](const Target& target) {
        const Status status = run_attention(target, data.args.forward);
        return status ? run_backward(target, data.args, reversed) : status;
      });
  return failure.empty() ? "" : c.name + " " + name_of(dtype) + " " + failure;
}

}  // namespace
}  // namespace tileformer::test

int main(int argc, char** argv) {
  return tileformer::test::fuzz_main(argc, argv, tileformer::test::failure_of);
}
