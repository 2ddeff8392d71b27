#include "tile/unit_names.h"

#include "base/cpu_features.h"

namespace tileformer {

const char* unit_name(Isa isa, DType dtype) {
  const bool bf16 = dtype == DType::bf16;
  switch (isa) {
    case Isa::amx: return bf16 ? "amx_bf16" : "avx512_fma";
    case Isa::avx512_bf16: return bf16 ? "avx512_bf16" : "avx512_fma";
    case Isa::avx512: return "avx512_fma";
    case Isa::avx2: return "avx2_fma";
    case Isa::neon: return bf16 && cpu_features().neon_bf16 ? "neon_bf16" : "neon_fma";
    case Isa::portable: return "portable_fma";
  }
  return "";
}

}  // namespace tileformer
