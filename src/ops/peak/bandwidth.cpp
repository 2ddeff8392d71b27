#include <algorithm>
#include <chrono>
#include <cstdint>
#include <string>

#include "ops/peak/peak_units.h"
#include "ops/unit_table.h"
#include "tile/compiled_units.h"
#include "tileformer/peak.h"
#include "tileformer/workspace.h"

namespace tileformer {

#define TF_DECLARE(unit)                     \
  namespace unit {                           \
  extern const BandwidthUnit bandwidth_unit; \
  }
TF_FOR_EACH_UNIT(TF_DECLARE)

namespace {

#define TF_ADDRESS(unit) &unit::bandwidth_unit,
const BandwidthUnit* const kUnits[] = {TF_FOR_EACH_UNIT(TF_ADDRESS)};
constexpr UnitTable<BandwidthUnit> kTable(kUnits);

constexpr std::int64_t kLeastBytes = std::int64_t{1} << 20, kMostBytes = std::int64_t{1} << 36;
constexpr std::int64_t kBlockFloats = 1024;  // parts of threads are multiples of it
// A buffer that fits into a cache is gone through again and again, so that starting the threads does not
// count.
constexpr std::int64_t kLeastTraffic = std::int64_t{64} << 20;
constexpr int kRuns = 4;
// Lines of prefetching: none, 1 KiB, 4 KiB. Which of them is best differs from CPU to CPU.
constexpr std::int64_t kAhead[] = {0, 16, 64};

struct Sweep {
  const BandwidthUnit* unit;
  float* data;
  std::int64_t blocks;
  std::int64_t passes;
  int workers;
  bool writes;
  std::int64_t way;  // of reading: lines ahead; of writing: 1 = past the caches
};

void sweep_part(void* context, int worker) {
  const Sweep& sweep = *static_cast<const Sweep*>(context);
  const std::int64_t begin = sweep.blocks * worker / sweep.workers;
  const std::int64_t end = sweep.blocks * (worker + 1) / sweep.workers;
  float* const data = sweep.data + begin * kBlockFloats;
  const std::int64_t floats = (end - begin) * kBlockFloats;
  for (std::int64_t pass = 0; pass < sweep.passes; ++pass)
    if (sweep.writes)
      sweep.unit->write(data, floats, sweep.way == 1);
    else
      sweep.unit->read(data, floats, sweep.way);
}

double rate(Sweep& sweep, Executor& executor) {
  const auto start = std::chrono::steady_clock::now();
  executor.run(sweep.workers, sweep_part, &sweep);
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
  const double bytes =
      static_cast<double>(sweep.passes) * static_cast<double>(sweep.blocks) * kBlockFloats * 4;
  return bytes / elapsed.count() * 1e-9;
}

Status measure(std::int64_t bytes, Executor& executor, bool writes, double* gb_per_s) {
  if (bytes < kLeastBytes || bytes > kMostBytes)
    return Status::invalid("bytes: given " + std::to_string(bytes) + ", allowed " +
                           std::to_string(kLeastBytes) + " to " + std::to_string(kMostBytes));
  const BandwidthUnit* unit = nullptr;
  if (Status s = kTable.choose(DType::f32, &unit); !s) return s;
  ScratchBuffer buffer;
  const Workspace memory = buffer.reserve(static_cast<std::size_t>(bytes));
  if (memory.data == nullptr)
    return Status::out_of_memory("no memory for a buffer of " + std::to_string(bytes) + " bytes");

  Sweep sweep{unit, static_cast<float*>(memory.data), bytes / (kBlockFloats * 4), 1, executor.threads(), true,
              0};
  rate(sweep, executor);  // memory that nobody wrote is one page of zeros, or none at all
  sweep.passes = std::max<std::int64_t>(1, kLeastTraffic / bytes);
  sweep.writes = writes;
  double best = 0;
  for (int run = 0; run < kRuns; ++run) {
    if (writes)
      for (std::int64_t way : {0, 1}) sweep.way = way, best = std::max(best, rate(sweep, executor));
    else
      for (std::int64_t way : kAhead) sweep.way = way, best = std::max(best, rate(sweep, executor));
  }
  *gb_per_s = best;
  return Status::ok();
}

}  // namespace

Status measure_read_bandwidth(std::int64_t bytes, Executor& executor, double* gb_per_s) {
  return measure(bytes, executor, false, gb_per_s);
}

Status measure_write_bandwidth(std::int64_t bytes, Executor& executor, double* gb_per_s) {
  return measure(bytes, executor, true, gb_per_s);
}

}  // namespace tileformer
