// AVX-512 intrinsics by way of SIMDe, on AVX2 hardware: tests run the AVX-512 kernels on machines without it.
// Instructions that SIMDe 0.7.4 lacks are added here, from the architecture manuals.
#pragma once

#include <simde/x86/avx512.h>
#include <simde/x86/f16c.h>
#include <simde/x86/fma.h>

#include "base/scalar.h"

#define TF_EMULATED __attribute__((unused)) static inline

TF_EMULATED simde__m512 tf_cvtph_ps(simde__m256i x) {
  simde__m256i_private from = simde__m256i_to_private(x);
  simde__m512_private to;
  for (int i = 0; i < 16; ++i) to.f32[i] = tileformer::f32_from_f16(from.u16[i]);
  return simde__m512_from_private(to);
}
#undef _mm512_cvtph_ps
#define _mm512_cvtph_ps(x) tf_cvtph_ps(x)

TF_EMULATED simde__m256i tf_cvtps_ph(simde__m512 x) {
  simde__m512_private from = simde__m512_to_private(x);
  simde__m256i_private to;
  for (int i = 0; i < 16; ++i) to.u16[i] = tileformer::f16_from_f32(from.f32[i]);
  return simde__m256i_from_private(to);
}
#undef _mm512_cvtps_ph
#define _mm512_cvtps_ph(x, rounding) tf_cvtps_ph(x)

TF_EMULATED simde__m256i tf_cvtepi32_epi16(simde__m512i x) {
  simde__m512i_private from = simde__m512i_to_private(x);
  simde__m256i_private to;
  for (int i = 0; i < 16; ++i) to.i16[i] = static_cast<std::int16_t>(from.i32[i]);
  return simde__m256i_from_private(to);
}
#undef _mm512_cvtepi32_epi16
#define _mm512_cvtepi32_epi16(x) tf_cvtepi32_epi16(x)

TF_EMULATED simde__m128i tf_cvtepi32_epi8(simde__m512i x) {
  simde__m512i_private from = simde__m512i_to_private(x);
  simde__m128i_private to;
  for (int i = 0; i < 16; ++i) to.u8[i] = static_cast<std::uint8_t>(from.i32[i]);
  return simde__m128i_from_private(to);
}
#undef _mm512_cvtepi32_epi8
#define _mm512_cvtepi32_epi8(x) tf_cvtepi32_epi8(x)

TF_EMULATED simde__m512i tf_cvtepu16_epi32(simde__m256i x) {
  simde__m256i_private from = simde__m256i_to_private(x);
  simde__m512i_private to;
  for (int i = 0; i < 16; ++i) to.u32[i] = from.u16[i];
  return simde__m512i_from_private(to);
}
#undef _mm512_cvtepu16_epi32
#define _mm512_cvtepu16_epi32(x) tf_cvtepu16_epi32(x)

TF_EMULATED simde__m512i tf_cvtepi8_epi32(simde__m128i x) {
  simde__m128i_private from = simde__m128i_to_private(x);
  simde__m512i_private to;
  for (int i = 0; i < 16; ++i) to.i32[i] = from.i8[i];
  return simde__m512i_from_private(to);
}
#undef _mm512_cvtepi8_epi32
#define _mm512_cvtepi8_epi32(x) tf_cvtepi8_epi32(x)

TF_EMULATED simde__m512 tf_cvtepi32_ps(simde__m512i x) {
  simde__m512i_private from = simde__m512i_to_private(x);
  simde__m512_private to;
  for (int i = 0; i < 16; ++i) to.f32[i] = static_cast<float>(from.i32[i]);
  return simde__m512_from_private(to);
}
#undef _mm512_cvtepi32_ps
#define _mm512_cvtepi32_ps(x) tf_cvtepi32_ps(x)

// Numbers within 32 bits only.
TF_EMULATED simde__m512i tf_cvtps_epi32(simde__m512 x) {
  simde__m512_private from = simde__m512_to_private(x);
  simde__m512i_private to;
  for (int i = 0; i < 16; ++i) to.i32[i] = static_cast<std::int32_t>(__builtin_rintf(from.f32[i]));
  return simde__m512i_from_private(to);
}
#undef _mm512_cvtps_epi32
#define _mm512_cvtps_epi32(x) tf_cvtps_epi32(x)

// SIMDe's own name for it is that of its masked form.
#undef _mm512_madd_epi16
#define _mm512_madd_epi16(a, b) simde_mm512_madd_epi16(a, b)

#undef _mm512_shuffle_f32x4
#define _mm512_shuffle_f32x4(a, b, order) \
  simde_mm512_castsi512_ps(               \
      simde_mm512_shuffle_i32x4(simde_mm512_castps_si512(a), simde_mm512_castps_si512(b), order))

TF_EMULATED simde__m512i tf_srai_epi32(simde__m512i x, unsigned bits) {
  simde__m512i_private v = simde__m512i_to_private(x);
  for (int i = 0; i < 16; ++i) v.i32[i] >>= bits;
  return simde__m512i_from_private(v);
}
#undef _mm512_srai_epi32
#define _mm512_srai_epi32(x, bits) tf_srai_epi32(x, bits)

TF_EMULATED void tf_mask_storeu_epi32(void* p, simde__mmask16 mask, simde__m512i x) {
  simde__m512i_private v = simde__m512i_to_private(x);
  for (int i = 0; i < 16; ++i) {
    const std::int32_t lane = v.i32[i];
    if (mask >> i & 1) __builtin_memcpy(static_cast<char*>(p) + 4 * i, &lane, 4);
  }
}
#undef _mm512_mask_storeu_epi32
#define _mm512_mask_storeu_epi32(p, mask, x) tf_mask_storeu_epi32(p, mask, x)

// VCVTNE2PS2BF16: the second operand's lanes come first; subnormals become zero of their sign.
TF_EMULATED simde__m512bh tf_cvtne2ps_pbh(simde__m512 a, simde__m512 b) {
  simde__m512_private high = simde__m512_to_private(a), low = simde__m512_to_private(b);
  simde__m512bh_private to;
  for (int i = 0; i < 32; ++i) {
    const float x = i < 16 ? low.f32[i] : high.f32[i - 16];
    const bool subnormal = (tileformer::bits_of(x) & 0x7f800000u) == 0;
    to.u16[i] =
        subnormal ? std::uint16_t(tileformer::bits_of(x) >> 16 & 0x8000u) : tileformer::bf16_from_f32(x);
  }
  return simde__m512bh_from_private(to);
}
#undef _mm512_cvtne2ps_pbh
#define _mm512_cvtne2ps_pbh(a, b) tf_cvtne2ps_pbh(a, b)
TF_EMULATED simde__m256i tf_cvtneps_pbh(simde__m512 x) {
  const simde__m512bh both = tf_cvtne2ps_pbh(x, x);
  simde__m256i half;
  __builtin_memcpy(&half, &both, sizeof half);
  return half;
}
#undef _mm512_cvtneps_pbh
#define _mm512_cvtneps_pbh(x) tf_cvtneps_pbh(x)

// VDPBF16PS: two products a lane, summed without intermediate rounding here, where hardware flushes
// subnormals.
TF_EMULATED simde__m512 tf_dpbf16_ps(simde__m512 c, simde__m512bh a, simde__m512bh b) {
  simde__m512_private sum = simde__m512_to_private(c);
  simde__m512bh_private x = simde__m512bh_to_private(a), y = simde__m512bh_to_private(b);
  for (int i = 0; i < 16; ++i)
    for (int e = 0; e < 2; ++e)
      sum.f32[i] += tileformer::f32_from_bf16(x.u16[2 * i + e]) * tileformer::f32_from_bf16(y.u16[2 * i + e]);
  return simde__m512_from_private(sum);
}
#undef _mm512_dpbf16_ps
#define _mm512_dpbf16_ps(c, a, b) tf_dpbf16_ps(c, a, b)
