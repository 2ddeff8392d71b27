// What memory delivers to loads, and takes from stores, with nothing else to do.
#include "tile/unit.h"
//
#include "ops/peak/peak_units.h"
#include "tile/stream.h"

namespace tileformer::TILEFORMER_UNIT {
namespace {

constexpr std::int64_t kLineFloats = 16;
constexpr int kVectorsPerLine = static_cast<int>(kLineFloats) / kVecLanes;
constexpr int kLines = 4;  // a step: loads enough in flight, sums enough that no addition waits for another

// `ahead`: lines that are prefetched before they are loaded; 0 leaves it to the CPU.
void read_block(const float* data, std::int64_t floats, std::int64_t ahead) {
  F sum[kLines * kVectorsPerLine];
  for (F& s : sum) s = zero();
  const std::int64_t step = kLines * kLineFloats;
  TF_NO_UNROLL for (std::int64_t i = 0; i + step <= floats; i += step) {
    // Beyond the end is harmless: a prefetch does not fault.
    if (ahead > 0)
      TF_UNROLL for (int line = 0; line < kLines; ++line)
          prefetch(reinterpret_cast<const char*>(data + i) + (ahead + line) * 64);
    TF_UNROLL for (int v = 0; v < kLines * kVectorsPerLine; ++v) sum[v] =
        add(sum[v], load(data + i + v * kVecLanes));
  }
  F total = sum[0];
  for (int v = 1; v < kLines * kVectorsPerLine; ++v) total = add(total, sum[v]);
  alignas(64) float result[kVecLanes];
  store(result, total);
  asm volatile("" : : "r"(result) : "memory");
}

void write_block(float* data, std::int64_t floats, bool past_caches) {
  constexpr std::int64_t kBlock = 1024;  // stays in L1
  alignas(64) float block[kBlock];
  for (std::int64_t i = 0; i < kBlock; ++i) block[i] = static_cast<float>(i);
  asm volatile("" : : "r"(block) : "memory");
  for (std::int64_t at = 0; at + kBlock <= floats; at += kBlock) {
    if (past_caches)
      stream_copy(data + at, block, kBlock * sizeof(float));
    else
      TF_NO_UNROLL for (std::int64_t i = 0; i < kBlock; i += kVecLanes) store(data + at + i, load(block + i));
  }
  stream_end();
  asm volatile("" : : "r"(data) : "memory");
}

}  // namespace

extern const BandwidthUnit bandwidth_unit;
const BandwidthUnit bandwidth_unit = {TF_STRINGIZE(TILEFORMER_UNIT), read_block, write_block};

}  // namespace tileformer::TILEFORMER_UNIT
