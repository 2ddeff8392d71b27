#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>

#include "tileformer/workspace.h"

namespace tileformer {
namespace {

std::uintptr_t address(const Workspace& w) { return reinterpret_cast<std::uintptr_t>(w.data); }

TEST(ScratchBuffer, GivesAlignedWritableMemoryOfAtLeastTheSize) {
  for (std::size_t bytes : {std::size_t{1}, std::size_t{5000}, std::size_t{3} << 20}) {
    ScratchBuffer buffer;
    const Workspace w = buffer.reserve(bytes);
    ASSERT_NE(w.data, nullptr);
    EXPECT_GE(w.bytes, bytes);
    EXPECT_EQ(address(w) % (bytes >= (std::size_t{2} << 20) ? std::size_t{2} << 20 : 4096), 0u);
    std::memset(w.data, 1, w.bytes);
  }
}

TEST(ScratchBuffer, KeepsItsMemoryForSmallerRequests) {
  ScratchBuffer buffer;
  const Workspace first = buffer.reserve(100000);
  EXPECT_EQ(buffer.reserve(10).data, first.data);
  EXPECT_EQ(buffer.reserve(first.bytes).data, first.data);
}

TEST(ScratchBuffer, GrowsGeometrically) {
  ScratchBuffer buffer;
  int growths = 0;
  std::size_t last = 0;
  for (std::size_t bytes = 1; bytes < (1u << 20); bytes += 64) {
    const std::size_t now = buffer.reserve(bytes).bytes;
    growths += now != last;
    last = now;
  }
  EXPECT_LT(growths, 30);
}

TEST(ScratchBuffer, AnImpossibleSizeGivesNoMemoryAndTheBufferStaysUsable) {
  ScratchBuffer buffer;
  ASSERT_NE(buffer.reserve(100).data, nullptr);
  EXPECT_EQ(buffer.reserve(SIZE_MAX).data, nullptr);
  EXPECT_EQ(buffer.reserve(SIZE_MAX / 2).data, nullptr);
  EXPECT_NE(buffer.reserve(100).data, nullptr);
}

TEST(ScratchBuffer, ReleaseLeavesAnEmptyBuffer) {
  ScratchBuffer buffer;
  ASSERT_NE(buffer.reserve(100).data, nullptr);
  buffer.release();
  EXPECT_GE(buffer.reserve(8192).bytes, 8192u);
}

}  // namespace
}  // namespace tileformer
