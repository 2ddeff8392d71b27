#include "base/cpu_features.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#elif defined(__aarch64__)
#include <sys/auxv.h>
#endif

#include <cstdint>

namespace tileformer {
namespace {

#if defined(__x86_64__)

struct CpuidLeaf {
  std::uint32_t eax = 0, ebx = 0, ecx = 0, edx = 0;
};

CpuidLeaf cpuid(std::uint32_t leaf, std::uint32_t subleaf) {
  CpuidLeaf r;
  __get_cpuid_count(leaf, subleaf, &r.eax, &r.ebx, &r.ecx, &r.edx);
  return r;
}

constexpr bool bit(std::uint64_t word, int index) { return (word >> index) & 1; }

// XCR0: the register states that the operating system saves. Written as assembly because the intrinsic needs
// -mxsave.
std::uint64_t saved_states() {
  std::uint32_t low, high;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return std::uint64_t{high} << 32 | low;
}

// Linux keeps the 8 KiB of tile data off until a process asks for it; using tiles before that is a SIGILL.
bool request_tile_data() {
  constexpr int kArchReqXcompPerm = 0x1023, kXfeatureTileData = 18;
  return syscall(SYS_arch_prctl, kArchReqXcompPerm, kXfeatureTileData) == 0;
}

CpuFeatures detect() {
  CpuFeatures f;
  const CpuidLeaf l1 = cpuid(1, 0), l7 = cpuid(7, 0), l7_1 = cpuid(7, 1);
  const bool osxsave = bit(l1.ecx, 27);
  if (!osxsave) return f;
  constexpr std::uint64_t kYmm = 0x6, kZmm = 0xE6, kTiles = 0x60000;
  const std::uint64_t states = saved_states();
  const auto saves = [states](std::uint64_t mask) { return (states & mask) == mask; };

  const bool avx = bit(l1.ecx, 28), fma = bit(l1.ecx, 12), f16c = bit(l1.ecx, 29), avx2 = bit(l7.ebx, 5);
  f.avx2_fma = saves(kYmm) && avx && fma && f16c && avx2;

  const bool avx512f = bit(l7.ebx, 16), dq = bit(l7.ebx, 17), bw = bit(l7.ebx, 30), vl = bit(l7.ebx, 31);
  f.avx512 = f.avx2_fma && saves(kZmm) && avx512f && dq && bw && vl;
  f.avx512_bf16 = f.avx512 && bit(l7_1.eax, 5);

  const bool amx_tile = bit(l7.edx, 24), amx_bf16 = bit(l7.edx, 22);
  f.amx_bf16 = f.avx512_bf16 && saves(kTiles) && amx_tile && amx_bf16 && request_tile_data();
  return f;
}

#elif defined(__aarch64__)

CpuFeatures detect() {
  constexpr unsigned long kHwcapAsimd = 1ul << 1, kHwcap2Bf16 = 1ul << 14;
  CpuFeatures f;
  f.neon = (getauxval(AT_HWCAP) & kHwcapAsimd) != 0;
  f.neon_bf16 = f.neon && (getauxval(AT_HWCAP2) & kHwcap2Bf16) != 0;
  return f;
}

#else

CpuFeatures detect() { return {}; }

#endif

}  // namespace

const CpuFeatures& cpu_features() {
  static const CpuFeatures features = detect();
  return features;
}

}  // namespace tileformer
