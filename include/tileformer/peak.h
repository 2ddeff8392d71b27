// The yardsticks of every benchmark: what this machine's matrix unit and memory reach, measured now.
#pragma once

#include <cstdint>

#include "tileformer/dtype.h"
#include "tileformer/executor.h"
#include "tileformer/status.h"

namespace tileformer {

// GFLOP/s of the calling thread multiplying dtype (f32, f16, bf16) with the unit of the active ISA: operands
// in registers, random data, best of several runs of a few milliseconds.
Status measure_peak(DType dtype, double* gflops);

// GB/s (1e9) of all threads of the executor together streaming through a buffer of `bytes`, 1 MiB to 64 GiB,
// of which each has an equal part: the best of several ways and runs. The buffer is made for the call, on
// huge pages where the system grants them; one that fits into a cache measures that cache. Reads are loads of
// whole vectors with nothing else to do, writes fill whole lines, past the caches or through them.
Status measure_read_bandwidth(std::int64_t bytes, Executor& executor, double* gb_per_s);
Status measure_write_bandwidth(std::int64_t bytes, Executor& executor, double* gb_per_s);

}  // namespace tileformer
