// The yardsticks: positive, of the right order, and refused for what no unit multiplies.
#include "tileformer/peak.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>

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

TEST(Bandwidth, EveryIsaReadsAndWrites) {
  const std::unique_ptr<Executor> pool = make_thread_pool(2);
  for (Isa isa : supported_isas()) {
    ASSERT_TRUE(force_isa(name_of(isa)));
    // Not a whole number of blocks, nor of blocks per thread.
    for (const auto measure : {measure_read_bandwidth, measure_write_bandwidth}) {
      double gb_per_s = 0;
      ASSERT_TRUE(measure((1 << 20) + 5000, *pool, &gb_per_s)) << name_of(isa);
      EXPECT_GT(gb_per_s, 0.01) << name_of(isa);
      EXPECT_LT(gb_per_s, 20000) << name_of(isa);
    }
  }
  ASSERT_TRUE(force_isa(""));
}

TEST(Bandwidth, SizesOutOfRangeAreRefused) {
  double gb_per_s = 0;
  for (const std::int64_t bytes : {std::int64_t{-1}, std::int64_t{1000}, std::int64_t{1} << 40}) {
    const Status status = measure_read_bandwidth(bytes, serial_executor(), &gb_per_s);
    EXPECT_EQ(status.code(), StatusCode::invalid_argument);
    EXPECT_NE(status.message().find("bytes"), std::string::npos) << status.message();
  }
}

}  // namespace
}  // namespace tileformer
