// From the dtype of K or V to code for how it is stored. Included by kernels only.
#pragma once

#include "tile/config.h"
#include "tileformer/dtype.h"

namespace tileformer::TILEFORMER_UNIT {

// Returns use(T{}), T what the dtype names. Units of bf16 are given nothing else.
template <class Use>
TF_INLINE auto for_storage(DType dtype, Use use) {
  if constexpr (kElementsPerWord == 1) {
    switch (dtype) {
      case DType::f32: return use(F32{});
      case DType::f16: return use(F16{});
      case DType::i8: return use(I8{});
      case DType::f8_e4m3: return use(E4M3{});
      case DType::f8_e5m2: return use(E5M2{});
      default: break;
    }
  }
  return use(BF16{});
}

}  // namespace tileformer::TILEFORMER_UNIT
