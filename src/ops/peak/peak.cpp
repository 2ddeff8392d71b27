#include "tileformer/peak.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <random>
#include <string>

#include "base/scalar.h"
#include "ops/peak/peak_units.h"
#include "ops/unit_table.h"
#include "tile/compiled_units.h"

namespace tileformer {

#define TF_DECLARE(unit)           \
  namespace unit {                 \
  extern const PeakUnit peak_unit; \
  }
TF_FOR_EACH_UNIT(TF_DECLARE)

namespace {

#define TF_ADDRESS(unit) &unit::peak_unit,
const PeakUnit* const kUnits[] = {TF_FOR_EACH_UNIT(TF_ADDRESS)};
constexpr UnitTable<PeakUnit> kTable(kUnits);

}  // namespace

Status measure_peak(DType dtype, double* gflops) {
  if (dtype != DType::f32 && dtype != DType::f16 && dtype != DType::bf16)
    return Status::invalid(std::string("dtype: given ") + name_of(dtype) +
                           ", allowed float32, float16, bfloat16");
  const PeakUnit* unit = nullptr;
  if (Status s = kTable.choose(dtype, &unit); !s) return s;

  // The same bits serve as fp32 and as pairs of bf16.
  alignas(64) std::uint32_t random[512];
  std::mt19937 generator(1);
  std::normal_distribution<float> normal;
  for (std::uint32_t& x : random) {
    const std::uint32_t low = bf16_from_f32(normal(generator)), high = bf16_from_f32(normal(generator));
    x = low | high << 16;
  }
  using Clock = std::chrono::steady_clock;
  auto seconds = [&](std::int64_t rounds, double* work) {
    const auto start = Clock::now();
    *work = unit->multiply(random, rounds) * double(rounds);
    return std::chrono::duration<double>(Clock::now() - start).count();
  };
  std::int64_t rounds = 1000;
  double work;
  while (seconds(rounds, &work) < 1e-3) rounds *= 2;
  double best = 0;
  for (int i = 0; i < 12; ++i) {
    const double t = seconds(rounds, &work);
    best = std::max(best, work / t * 1e-9);
  }
  *gflops = best;
  return Status::ok();
}

}  // namespace tileformer
