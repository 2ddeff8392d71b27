// Which unit computes a dtype on an ISA; every operator's table of kernels is made of these. Not for kernels.
#pragma once

#include "tileformer/dtype.h"
#include "tileformer/isa.h"

namespace tileformer {

// "avx2_fma"; the unit may not be compiled in.
const char* unit_name(Isa isa, DType dtype);

}  // namespace tileformer
