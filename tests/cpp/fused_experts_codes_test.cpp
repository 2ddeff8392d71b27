// Quantised weights: the error that they bring, and that of the 16-bit whole numbers which few tokens are
// rounded to beside them; the ends of both ranges.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "fused_experts_accuracy.h"
#include "fused_experts_runner.h"

namespace tileformer::test {
namespace {

// Codes of real weights [experts, out, in] by rounding, with the scale that the largest of a row or of a
// group asks for.
struct Quantised {
  std::vector<std::int8_t> codes;
  std::vector<float> scales;
  ExpertWeights weights;

  Quantised(const TensorView& real, DType dtype, std::int64_t group) {
    const std::int64_t experts = real.shape[0], out = real.shape[1], in = real.shape[2];
    const bool nibbles = dtype == DType::i4x2;
    const std::int64_t per_byte = nibbles ? 2 : 1, groups = nibbles ? in / group : 1;
    codes.assign(std::size_t(experts * out * in / per_byte), 0);
    for (std::int64_t row = 0; row < experts * out; ++row)
      for (std::int64_t g = 0; g < groups; ++g) {
        const std::int64_t first = g * (in / groups), end = first + in / groups;
        const auto at = [&](std::int64_t c) { return get(real, {row / out, row % out, c}); };
        double largest = 0;
        for (std::int64_t c = first; c < end; ++c) largest = std::max(largest, std::abs(at(c)));
        scales.push_back(static_cast<float>(largest / (nibbles ? 7 : 127)));
        for (std::int64_t c = first; c < end; ++c) {
          const int code = static_cast<int>(std::nearbyint(at(c) / scales.back()));
          auto& byte = codes[std::size_t((row * in + c) / per_byte)];
          byte = static_cast<std::int8_t>(!nibbles     ? code
                                          : c % 2 == 0 ? code & 15
                                                       : (byte & 15) | (code & 15) << 4);
        }
      }
    weights.weight = TensorView::dense(codes.data(), dtype, {experts, out, in / per_byte});
    weights.scale = nibbles ? TensorView::dense(scales.data(), DType::f32, {experts, out, groups})
                            : TensorView::dense(scales.data(), DType::f32, {experts, out});
  }
};

struct Format {
  const char* name;
  DType dtype;
  std::int64_t group;
  double tolerance;  // of the output beside that of the real weights, which are normal numbers
};

// Rounding to a step of s has the error s / sqrt(12); a row of 512 normal numbers has its largest at 3.1, a
// group of 32, 64, 128 at 2.1, 2.4, 2.6. Gates, ups and down bring it to twice that.
constexpr Format kFormats[] = {{"int8", DType::i8, 0, 0.0145},
                               {"int4_32", DType::i4x2, 32, 0.19},
                               {"int4_64", DType::i4x2, 64, 0.21},
                               {"int4_128", DType::i4x2, 128, 0.225}};

TEST(FusedExpertsCodes, AreNearTheWeightsTheyWereMadeFrom) {
  for (std::int64_t tokens : {3, 70}) {
    const ExpertsData data({.tokens = tokens, .k = 1, .experts = 2, .hidden = 512, .inter = 256}, DType::f32);
    FusedExpertsArgs args = data.args;
    ASSERT_TRUE(fused_experts_reference(args));
    const std::vector<double> exact = elements_of(args.out);
    const double size = rms(std::vector<double>(exact.size()), exact);
    for (const Format& format : kFormats) {
      const Quantised gate_up(data.args.gate_up.weight, format.dtype, format.group),
          down(data.args.down.weight, format.dtype, format.group);
      args.gate_up = gate_up.weights;
      args.down = down.weights;
      ASSERT_TRUE(fused_experts_reference(args));
      const std::vector<double> of_codes = elements_of(args.out);
      const double error = rms(of_codes, exact) / size;
      EXPECT_LT(error, format.tolerance) << format.name;
      EXPECT_GT(error, format.tolerance / 2) << format.name;
      for (const ExpertsTarget& target : experts_targets(DType::f32)) {
        SCOPED_TRACE(target.name + " " + format.name);
        ASSERT_TRUE(run_experts(target, args));
        // Few tokens: 3e-5 of a product for a row of normal numbers, of which gates, ups and down are three.
        EXPECT_LT(rms(elements_of(args.out), of_codes) / size, tokens > 12 ? 2e-6 : 1.5e-4);
      }
    }
  }
}

// One product of codes, the other of plain weights, stored either way.
TEST(FusedExpertsCodes, BesidePlainWeights) {
  for (std::int64_t tokens : {5, 40})
    for (bool transposed : {false, true}) {
      const ExpertsCase c{
          .tokens = tokens, .k = 1, .experts = 1, .hidden = 96, .inter = 64, .transposed = transposed};
      const ExpertsData plain(c, DType::f32);
      FusedExpertsArgs up_codes = plain.args, down_codes = plain.args;
      const Quantised gate_up(plain.args.gate_up.weight, DType::i8, 0),
          down(plain.args.down.weight, DType::i4x2, 32);
      up_codes.gate_up = gate_up.weights;
      down_codes.down = down.weights;
      for (const FusedExpertsArgs& args : {up_codes, down_codes}) {
        const ExpertsAccuracy accuracy(args);
        ASSERT_TRUE(accuracy.status) << accuracy.status.message();
        for (const ExpertsTarget& target : experts_targets(DType::f32)) {
          SCOPED_TRACE(target.name);
          ASSERT_TRUE(run_experts(target, args));
          EXPECT_EQ(accuracy.failure(args), "");
        }
      }
    }
}

// Every code and every element at the end of its range, and long rows: the sums of whole numbers grow as fast
// as they can.
TEST(FusedExpertsCodes, LongRowsDoNotOverflow) {
  for (DType codes : {DType::i8, DType::i4x2})
    for (double sign : {1.0, -1.0}) {
      const ExpertsCase c{.tokens = 2,
                          .k = 1,
                          .experts = 1,
                          .hidden = 30016,
                          .inter = 32,
                          .activation = ExpertActivation::swiglu_oai,
                          .limit = 1e6,
                          .codes = codes,
                          .store = true};
      const ExpertsData data(c, DType::f32);
      const FusedExpertsArgs& args = data.args;
      const int code = codes == DType::i8 ? -128 : 0x88;  // the least of both
      for_each_index(args.gate_up.weight, [&](const Index& at) {
        static_cast<std::uint8_t*>(args.gate_up.weight.data)[offset_of(args.gate_up.weight, at)] =
            static_cast<std::uint8_t>(code);
      });
      for_each_index(args.hidden, [&](const Index& at) { set(args.hidden, at, sign * 0.01); });
      ASSERT_TRUE(fused_experts_reference(args));
      const std::vector<double> exact = elements_of(args.gate_up_out);
      const double size = rms(std::vector<double>(exact.size()), exact);
      for (const ExpertsTarget& target : experts_targets(DType::f32)) {
        SCOPED_TRACE(target.name);
        ASSERT_TRUE(run_experts(target, args));
        EXPECT_LT(rms(elements_of(args.gate_up_out), exact) / size, 2e-6) << name_of(codes);
      }
    }
}

// One element r times as large as the root mean square of the others: they keep an error of 9e-6 r.
TEST(FusedExpertsCodes, AnOutlierCostsWhatIsStated) {
  for (double r : {30.0, 1000.0}) {
    const ExpertsCase c{
        .tokens = 4, .k = 1, .experts = 1, .hidden = 1024, .inter = 96, .codes = DType::i8, .store = true};
    const ExpertsData data(c, DType::f32);
    const FusedExpertsArgs& args = data.args;
    for (std::int64_t t = 0; t < 4; ++t) set(args.hidden, {t, 100 + t}, r);
    // The outlier meets no weight, so that what is left is the error of the others.
    for_each_index(args.gate_up.weight, [&](const Index& at) {
      if (at[2] >= 100 && at[2] < 104)
        static_cast<std::int8_t*>(args.gate_up.weight.data)[offset_of(args.gate_up.weight, at)] = 0;
    });
    ASSERT_TRUE(fused_experts_reference(args));
    const std::vector<double> exact = elements_of(args.gate_up_out);
    const double size = rms(std::vector<double>(exact.size()), exact);
    for (const ExpertsTarget& target : experts_targets(DType::f32)) {
      SCOPED_TRACE(target.name);
      ASSERT_TRUE(run_experts(target, args));
      EXPECT_LT(rms(elements_of(args.gate_up_out), exact) / size, 1.2 * 9e-6 * r);
    }
  }
}

// A row of any size has its own factor, and what is not finite in one reaches no other.
TEST(FusedExpertsCodes, RowsOfAllSizes) {
  const std::vector<double> sizes = {
      1e-32, 1, 0, 1e30, std::nan(""), std::numeric_limits<double>::infinity()};
  for (DType codes : {DType::i8, DType::i4x2}) {
    const ExpertsCase c{.tokens = std::int64_t(sizes.size()),
                        .k = 1,
                        .experts = 1,
                        .hidden = 64,
                        .inter = 32,
                        .codes = codes,
                        .store = true};
    const ExpertsData data(c, DType::f32);
    const FusedExpertsArgs& args = data.args;
    for_each_index(args.hidden, [&](const Index& at) {
      const double s = sizes[std::size_t(at[0])];
      if (std::isfinite(s)) set(args.hidden, at, s * get(args.hidden, at));
    });
    set(args.hidden, {4, 5}, sizes[4]);
    set(args.hidden, {5, 63}, sizes[5]);
    ASSERT_TRUE(fused_experts_reference(args));
    const std::vector<double> exact = elements_of(args.gate_up_out);
    for (const ExpertsTarget& target : experts_targets(DType::f32)) {
      SCOPED_TRACE(target.name + " " + name_of(codes));
      ASSERT_TRUE(run_experts(target, args));
      for (std::size_t t = 0; t < sizes.size(); ++t)
        for (std::int64_t i = 0; i < 2 * 32; ++i) {
          const double is = get(args.gate_up_out, {std::int64_t(t), i}),
                       wanted = exact[t * 64 + std::size_t(i)];
          if (std::isfinite(sizes[t]))
            ASSERT_NEAR(is, wanted, 2e-4 * sizes[t]) << "token " << t << " row " << i;
          else
            ASSERT_FALSE(std::isfinite(is)) << "token " << t << " row " << i;
        }
      for (std::int64_t d = 0; d < 64; ++d)
        for (std::int64_t t : {0, 1, 2}) ASSERT_TRUE(std::isfinite(get(args.out, {t, d}))) << "token " << t;
    }
  }
}

}  // namespace
}  // namespace tileformer::test
