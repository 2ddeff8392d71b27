// For each unit that this build has, TF_FOR_EACH_UNIT(X) says X(unit). Operators make their kernel tables
// with it.
#pragma once

#ifdef TILEFORMER_HAVE_PORTABLE_FMA
#define TF_IF_PORTABLE_FMA(X) X(portable_fma)
#else
#define TF_IF_PORTABLE_FMA(X)
#endif
#ifdef TILEFORMER_HAVE_AVX2_FMA
#define TF_IF_AVX2_FMA(X) X(avx2_fma)
#else
#define TF_IF_AVX2_FMA(X)
#endif
#ifdef TILEFORMER_HAVE_AVX512_FMA
#define TF_IF_AVX512_FMA(X) X(avx512_fma)
#else
#define TF_IF_AVX512_FMA(X)
#endif
#ifdef TILEFORMER_HAVE_AVX512_BF16
#define TF_IF_AVX512_BF16(X) X(avx512_bf16)
#else
#define TF_IF_AVX512_BF16(X)
#endif
#ifdef TILEFORMER_HAVE_AMX_BF16
#define TF_IF_AMX_BF16(X) X(amx_bf16)
#else
#define TF_IF_AMX_BF16(X)
#endif
#ifdef TILEFORMER_HAVE_NEON_FMA
#define TF_IF_NEON_FMA(X) X(neon_fma)
#else
#define TF_IF_NEON_FMA(X)
#endif
#ifdef TILEFORMER_HAVE_NEON_BF16
#define TF_IF_NEON_BF16(X) X(neon_bf16)
#else
#define TF_IF_NEON_BF16(X)
#endif
// Tests only.
#ifdef TILEFORMER_HAVE_AMX_EMULATED
#define TF_IF_AMX_EMULATED(X) X(amx_emulated)
#else
#define TF_IF_AMX_EMULATED(X)
#endif
#ifdef TILEFORMER_HAVE_AVX512_FMA_SIMDE
#define TF_IF_AVX512_FMA_SIMDE(X) X(avx512_fma_simde)
#else
#define TF_IF_AVX512_FMA_SIMDE(X)
#endif
#ifdef TILEFORMER_HAVE_AVX512_BF16_SIMDE
#define TF_IF_AVX512_BF16_SIMDE(X) X(avx512_bf16_simde)
#else
#define TF_IF_AVX512_BF16_SIMDE(X)
#endif

// clang-format off
#define TF_FOR_EACH_UNIT(X)                                                             \
  TF_IF_PORTABLE_FMA(X) TF_IF_AVX2_FMA(X) TF_IF_AVX512_FMA(X) TF_IF_AVX512_BF16(X)      \
  TF_IF_AMX_BF16(X) TF_IF_NEON_FMA(X) TF_IF_NEON_BF16(X)                                \
  TF_IF_AMX_EMULATED(X) TF_IF_AVX512_FMA_SIMDE(X) TF_IF_AVX512_BF16_SIMDE(X)
// clang-format on
