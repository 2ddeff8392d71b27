// What the unit's products reach with nothing else to do: operands in registers, random data (zeros run
// faster).
#include "tile/unit.h"
//
#include "ops/peak/peak_units.h"

namespace tileformer::TILEFORMER_UNIT {
namespace {

#if defined(TF_TILE_DOT)

double multiply(const std::uint32_t* random, std::int64_t rounds) {
  enter_unit();
  TF_TILE_ZERO(0);
  TF_TILE_ZERO(1);
  TF_TILE_ZERO(2);
  TF_TILE_ZERO(3);
  TF_TILE_LOAD(4, random, 64);
  TF_TILE_LOAD(5, random + 64, 64);
  TF_TILE_LOAD(6, random + 128, 64);
  TF_TILE_LOAD(7, random + 192, 64);
  for (std::int64_t i = 0; i < rounds; ++i) {
    TF_TILE_DOT(0, 4, 6);
    TF_TILE_DOT(1, 4, 7);
    TF_TILE_DOT(2, 5, 6);
    TF_TILE_DOT(3, 5, 7);
  }
  leave_unit();
  return 4.0 * 2 * 16 * 16 * 32;
}

#else

double multiply(const std::uint32_t* random, std::int64_t rounds) {
  constexpr int kChains =
      12;  // enough for two pipes of latency 4 to 6; operands fit beside them in 16 registers
  F acc[kChains];
  alignas(64) Word operand[2 * kVecLanes];
  __builtin_memcpy(operand, random, sizeof operand);
  const Words a = load_words(operand), b = load_words(operand + kVecLanes);
  // Different from one another, or the compiler makes one chain of them.
  TF_UNROLL for (int c = 0; c < kChains; ++c) acc[c] = set(static_cast<float>(c));
  TF_NO_UNROLL for (std::int64_t i = 0; i < rounds; ++i) {
    TF_UNROLL for (int c = 0; c < kChains; ++c) acc[c] = multiply_add(acc[c], a, b);
    asm volatile("" ::: "memory");
  }
  F sum = acc[0];
  TF_UNROLL for (int c = 1; c < kChains; ++c) sum = add(sum, acc[c]);
  alignas(64) float result[kVecLanes];
  store(result, sum);
  asm volatile("" : : "r"(result) : "memory");
  return double{kChains} * 2 * kVecLanes * kElementsPerWord;
}

#endif

}  // namespace

extern const PeakUnit peak_unit;
const PeakUnit peak_unit = {TF_STRINGIZE(TILEFORMER_UNIT), multiply};

}  // namespace tileformer::TILEFORMER_UNIT
