// What the CPU and the operating system grant together. A feature whose registers the kernel does not save
// counts as absent.
#pragma once

namespace tileformer {

struct CpuFeatures {
  bool avx2_fma = false;     // AVX2, FMA, F16C
  bool avx512 = false;       // AVX-512 F, BW, DQ, VL, on top of avx2_fma
  bool avx512_bf16 = false;  // on top of avx512
  bool amx_bf16 = false;     // AMX tiles with bf16 products, on top of avx512_bf16, granted to this process
  bool neon = false;         // aarch64 Advanced SIMD
  bool neon_bf16 = false;    // BFDOT and BFMMLA, on top of neon
};

// Detected at the first call. On a CPU with AMX that call asks the kernel for the tile registers.
const CpuFeatures& cpu_features();

}  // namespace tileformer
