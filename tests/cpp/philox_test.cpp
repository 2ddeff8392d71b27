// The random bits of dropout against the known answers of Random123 (Salmon et al. 2011).
#include "tileformer/philox.h"

#include <gtest/gtest.h>

#include <vector>

namespace tileformer {
namespace {

std::vector<std::uint32_t> words(const PhiloxWords& w) { return {w.word, w.word + 4}; }

TEST(Philox, KnownAnswers) {
  EXPECT_EQ(words(philox4x32(0, 0, 0, 0, 0, 0)),
            (std::vector<std::uint32_t>{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(words(philox4x32(~0u, ~0u, ~0u, ~0u, ~0u, ~0u)),
            (std::vector<std::uint32_t>{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(words(philox4x32(0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344, 0xa4093822, 0x299f31d0)),
            (std::vector<std::uint32_t>{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Philox, ThresholdIsTheProbability) {
  EXPECT_EQ(dropout_threshold(0), 0u);
  EXPECT_EQ(dropout_threshold(0.25f), 0x40000000u);
  EXPECT_EQ(dropout_threshold(0.5f), 0x80000000u);
  EXPECT_EQ(dropout_threshold(1), 0xFFFFFFFFu);
}

}  // namespace
}  // namespace tileformer
