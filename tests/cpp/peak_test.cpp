// The yardstick: positive, of the right order, and refused for what no unit multiplies.
#include "tileformer/peak.h"

#include <gtest/gtest.h>

#include "tileformer/isa.h"

namespace tileformer {
namespace {

TEST(Peak, EveryIsaAndDtypeMeasures) {
  for (Isa isa : supported_isas()) {
    ASSERT_TRUE(force_isa(name_of(isa)));
    for (DType dtype : {DType::f32, DType::f16, DType::bf16}) {
      double gflops = 0;
      ASSERT_TRUE(measure_peak(dtype, &gflops)) << name_of(isa);
      EXPECT_GT(gflops, 0.1) << name_of(isa) << " " << name_of(dtype);
      EXPECT_LT(gflops, 20000) << name_of(isa) << " " << name_of(dtype);
    }
  }
  ASSERT_TRUE(force_isa(""));
}

TEST(Peak, OtherDtypesAreRefused) {
  double gflops = 0;
  const Status status = measure_peak(DType::f64, &gflops);
  EXPECT_EQ(status.code(), StatusCode::invalid_argument);
  EXPECT_NE(status.message().find("dtype"), std::string::npos) << status.message();
}

}  // namespace
}  // namespace tileformer
