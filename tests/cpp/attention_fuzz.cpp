// Random problems on every target against the exact result.
#include <string>

#include "attention_accuracy.h"
#include "attention_data.h"
#include "attention_runner.h"
#include "fuzz.h"
#include "fuzz_targets.h"
#include "random_case.h"

namespace tileformer::test {
namespace {

// Empty if every target is right.
std::string failure_of(std::uint64_t seed) {
  RandomCase random(seed);
  const DType dtype = random.dtype();
  const AttentionCase c = random.make_forward();
  const AttentionData data(c, dtype, seed % 2 == 0 ? Edge::begin : Edge::end, seed);
  const Accuracy accuracy(data.args, kRandomFactor);
  const std::string failure =
      failure_on(targets_of(dtype), data, data.args, accuracy,
                 [&](const Target& target) { return run_attention(target, data.args); });
  return failure.empty() ? "" : c.name + " " + name_of(dtype) + " " + failure;
}

}  // namespace
}  // namespace tileformer::test

int main(int argc, char** argv) {
  return tileformer::test::fuzz_main(argc, argv, tileformer::test::failure_of);
}
