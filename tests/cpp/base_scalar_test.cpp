// Half conversions against nearest-value search in double.
#include "base/scalar.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "base/element.h"

namespace tileformer {
namespace {

using FromFloat = std::uint16_t (*)(float);
using ToFloat = float (*)(std::uint16_t);

bool is_even(std::uint16_t bits) { return (bits & 1) == 0; }

// The conversion must be the nearest of its result's neighbours, and the even one of two equally near.
void expect_nearest(float x, FromFloat from_float, ToFloat to_float) {
  const std::uint16_t bits = from_float(x);
  const double y = to_float(bits), error = std::fabs(y - double(x));
  for (int step : {-1, 1}) {
    const std::uint16_t neighbour = std::uint16_t(bits + step);
    const double z = to_float(neighbour);
    if (!std::isfinite(z) || std::signbit(z) != std::signbit(y)) continue;
    const double other = std::fabs(z - double(x));
    ASSERT_LE(error, other) << "x = " << x;
    ASSERT_TRUE(error < other || is_even(bits)) << "x = " << x;
  }
}

void expect_round_trip(FromFloat from_float, ToFloat to_float) {
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const float x = to_float(std::uint16_t(bits));
    if (std::isnan(x)) {
      ASSERT_TRUE(std::isnan(to_float(from_float(x)))) << bits;
      ASSERT_EQ(from_float(x) >> 15, bits >> 15);
    } else {
      ASSERT_EQ(from_float(x), bits);
    }
  }
}

TEST(Scalar, EveryBf16SurvivesTheRoundTrip) { expect_round_trip(bf16_from_f32, f32_from_bf16); }
TEST(Scalar, EveryF16SurvivesTheRoundTrip) { expect_round_trip(f16_from_f32, f32_from_f16); }

TEST(Scalar, F16ValuesAreThoseOfTheFormat) {
  EXPECT_EQ(f32_from_f16(0x3C00), 1.0f);
  EXPECT_EQ(f32_from_f16(0x0001), 0x1p-24f);
  EXPECT_EQ(f32_from_f16(0x03FF), 1023 * 0x1p-24f);
  EXPECT_EQ(f32_from_f16(0x0400), 0x1p-14f);
  EXPECT_EQ(f32_from_f16(0x7BFF), 65504.0f);
  EXPECT_EQ(f32_from_f16(0xFC00), -std::numeric_limits<float>::infinity());
}

TEST(Scalar, RoundsToTheNearestAndTiesToEven) {
  std::mt19937 random(1);
  for (int i = 0; i < 200000; ++i) {
    const float x = float_of(std::uint32_t(random()));
    if (!std::isfinite(x)) continue;
    if (std::fabs(x) < 65504.0f) expect_nearest(x, f16_from_f32, f32_from_f16);
    if (std::fabs(x) < 3e38f) expect_nearest(x, bf16_from_f32, f32_from_bf16);
  }
  // Every tie between two fp16 neighbours, subnormals included.
  for (std::uint32_t bits = 0; bits < 0x7BFF; ++bits) {
    const float tie = (f32_from_f16(std::uint16_t(bits)) + f32_from_f16(std::uint16_t(bits + 1))) / 2;
    expect_nearest(tie, f16_from_f32, f32_from_f16);
    expect_nearest(-tie, f16_from_f32, f32_from_f16);
  }
}

TEST(Scalar, OverflowsToInfinity) {
  EXPECT_EQ(f16_from_f32(65519.0f), 0x7BFF);
  EXPECT_EQ(f16_from_f32(65520.0f), 0x7C00);
  EXPECT_EQ(f16_from_f32(-1e30f), 0xFC00);
  EXPECT_EQ(bf16_from_f32(std::numeric_limits<float>::max()), 0x7F80);
}

TEST(Scalar, ElementsOfEveryDtypeAreReadBackAsStored) {
  for (DType dtype : {DType::f64, DType::f32, DType::f16, DType::bf16, DType::i64, DType::i32}) {
    alignas(8) unsigned char memory[32] = {};
    store_element(memory, dtype, 3, -5.0);
    EXPECT_EQ(load_element(memory, dtype, 3), -5.0) << name_of(dtype);
    EXPECT_EQ(load_element(memory, dtype, 2), 0.0) << name_of(dtype);
  }
  const std::uint8_t flags[] = {0, 1, 255};
  EXPECT_EQ(load_element(flags, DType::boolean, 0), 0.0);
  EXPECT_EQ(load_element(flags, DType::boolean, 2), 1.0);
}

}  // namespace
}  // namespace tileformer
