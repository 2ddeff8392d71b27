#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>

#include "base/cpu_features.h"
#include "tileformer/isa.h"

namespace tileformer {
namespace {

bool contains(const std::vector<Isa>& isas, Isa isa) {
  return std::find(isas.begin(), isas.end(), isa) != isas.end();
}

class IsaTest : public ::testing::Test {
 protected:
  void TearDown() override { EXPECT_TRUE(force_isa("")); }
};

TEST_F(IsaTest, SupportedIsCompiledBestFirstAndEndsWithPortable) {
  const std::vector<Isa>& supported = supported_isas();
  ASSERT_FALSE(supported.empty());
  EXPECT_EQ(supported.back(), Isa::portable);
  EXPECT_TRUE(std::is_sorted(supported.begin(), supported.end()));
  for (Isa isa : supported) EXPECT_TRUE(contains(compiled_isas(), isa)) << name_of(isa);
}

TEST_F(IsaTest, SupportedFollowsTheCpu) {
  const CpuFeatures& cpu = cpu_features();
  const auto expect = [](Isa isa, bool granted) {
    EXPECT_EQ(contains(supported_isas(), isa), granted && contains(compiled_isas(), isa)) << name_of(isa);
  };
  expect(Isa::amx, cpu.amx_bf16);
  expect(Isa::avx512_bf16, cpu.avx512_bf16);
  expect(Isa::avx512, cpu.avx512);
  expect(Isa::avx2, cpu.avx2_fma);
  expect(Isa::neon, cpu.neon);
}

TEST_F(IsaTest, TheEnvironmentDecidesAndElseTheBest) {
  Isa isa;
  const Status status = active_isa(&isa);
  ASSERT_TRUE(status) << status.message();
  const char* name = std::getenv("TILEFORMER_ISA");
  if (name != nullptr && *name != '\0') {
    EXPECT_STREQ(name_of(isa), name);
  } else {
    EXPECT_EQ(isa, supported_isas().front());
  }
}

TEST_F(IsaTest, ForcesEverySupportedIsa) {
  for (Isa wanted : supported_isas()) {
    ASSERT_TRUE(force_isa(name_of(wanted)));
    Isa isa;
    ASSERT_TRUE(active_isa(&isa));
    EXPECT_EQ(isa, wanted);
  }
}

TEST_F(IsaTest, AnUnknownNameIsAnErrorThatListsWhatIsSupported) {
  Isa before, after;
  ASSERT_TRUE(active_isa(&before));
  const Status status = force_isa("sse9");
  EXPECT_EQ(status.code(), StatusCode::invalid_argument);
  EXPECT_NE(status.message().find("\"sse9\""), std::string::npos);
  for (Isa isa : supported_isas()) EXPECT_NE(status.message().find(name_of(isa)), std::string::npos);
  ASSERT_TRUE(active_isa(&after));
  EXPECT_EQ(before, after);
}

TEST_F(IsaTest, AnIsaOfAnotherMachineIsUnsupported) {
  for (Isa isa : {Isa::amx, Isa::avx512_bf16, Isa::avx512, Isa::avx2, Isa::neon}) {
    if (contains(supported_isas(), isa)) continue;
    const Status status = force_isa(name_of(isa));
    EXPECT_EQ(status.code(), StatusCode::unsupported) << name_of(isa);
    EXPECT_NE(status.message().find("portable"), std::string::npos) << status.message();
  }
}

}  // namespace
}  // namespace tileformer
