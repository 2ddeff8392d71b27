// The yardstick of every benchmark: what this machine's matrix unit reaches, measured now.
#pragma once

#include "tileformer/dtype.h"
#include "tileformer/status.h"

namespace tileformer {

// GFLOP/s of the calling thread multiplying dtype (f32, f16, bf16) with the unit of the active ISA: operands
// in registers, random data, best of several runs of a few milliseconds.
Status measure_peak(DType dtype, double* gflops);

}  // namespace tileformer
