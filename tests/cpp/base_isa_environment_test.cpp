// The variable is read once per process, so this test is a program of its own.
#include <gtest/gtest.h>

#include <cstdlib>

#include "tileformer/isa.h"

namespace tileformer {
namespace {

TEST(IsaEnvironment, AnUnknownNameFailsEveryCallUntilAnIsaIsForced) {
  ASSERT_EQ(setenv("TILEFORMER_ISA", "sse9", 1), 0);
  Isa isa;
  for (int call = 0; call < 2; ++call) {
    const Status status = active_isa(&isa);
    EXPECT_EQ(status.code(), StatusCode::invalid_argument);
    EXPECT_NE(status.message().find("TILEFORMER_ISA: \"sse9\""), std::string::npos) << status.message();
    EXPECT_NE(status.message().find("supported here: "), std::string::npos) << status.message();
    EXPECT_NE(status.message().find("portable"), std::string::npos) << status.message();
  }
  ASSERT_TRUE(force_isa("portable"));
  ASSERT_TRUE(active_isa(&isa));
  EXPECT_EQ(isa, Isa::portable);
  ASSERT_TRUE(force_isa(""));
  EXPECT_FALSE(active_isa(&isa));
}

}  // namespace
}  // namespace tileformer
