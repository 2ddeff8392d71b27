// Every unit against the reference loops: the same bits and codes for all dtypes, dims, strides and tails.
#include <gtest/gtest.h>

#include <limits>

#include "kv_append_problem.h"
#include "reversed_executor.h"

namespace tileformer::test {
namespace {

constexpr DType kFloats[] = {DType::f32, DType::f16, DType::bf16};
constexpr DType kStored[] = {DType::f32, DType::f16, DType::bf16, DType::i8, DType::f8_e4m3, DType::f8_e5m2};

// Unwritten elements too: both pools start with the same bytes.
void expect_same(const TensorView& got, const TensorView& want, const char* what) {
  for_each_index(want, [&](const Index& at) {
    const double a = get(got, at), b = get(want, at);
    ASSERT_TRUE(same_bits(a, b) || (std::isnan(a) && std::isnan(b)))
        << what << " [" << at[0] << ", " << at[1] << ", " << at[2] << ", " << at[3] << "]: " << a << " not "
        << b;
  });
}

void expect_same(const AppendArgs& got, const AppendArgs& want) {
  expect_same(got.key_pages, want.key_pages, "key");
  expect_same(got.value_pages, want.value_pages, "value");
  if (want.key_scale) expect_same(got.key_scale, want.key_scale, "key_scale");
  if (want.value_scale) expect_same(got.value_scale, want.value_scale, "value_scale");
}

void compare(const KvShape& shape, const KvTarget& on, Edge edge = Edge::end) {
  KvAppendProblem ours(shape, 3, edge), expected(shape, 3, edge);
  ASSERT_TRUE(append_kv_reference(expected.args));
  for (kv_cache::Stream stream : {kv_cache::Stream::by_size, kv_cache::Stream::always}) {
    kv_cache::force_stream(stream);
    const Status status = run_on(on, [&] { return append_kv(ours.args, serial_executor()); });
    kv_cache::force_stream(kv_cache::Stream::by_size);
    ASSERT_TRUE(status) << status.message();
    expect_same(ours.args, expected.args);
    EXPECT_TRUE(ours.tensors().clear_outputs()) << "wrote between rows";
  }
}

TEST(KvAppend, EveryPairOfDtypes) {
  for (const KvTarget& on : kv_targets()) {
    for (DType from : kFloats) {
      for (DType to : kStored) {
        SCOPED_TRACE(on.name + " " + name_of(from) + " to " + name_of(to));
        compare({.key = from, .value = from, .key_pages = to, .value_pages = to}, on);
        compare({.key = from, .value = DType::f32, .key_pages = to, .value_pages = DType::bf16}, on);
      }
    }
  }
}

TEST(KvAppend, EveryDim) {
  for (const KvTarget& on : kv_targets()) {
    for (std::int64_t dim :
         {1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 33, 64, 80, 96, 127, 128, 192, 256, 575, 576}) {
      for (DType to : {DType::bf16, DType::i8, DType::f8_e4m3}) {
        for (Edge edge : {Edge::begin, Edge::end}) {
          SCOPED_TRACE(on.name + " dim " + std::to_string(dim) + " " + name_of(to));
          compare(
              {.tokens = 9, .heads = 2, .dim = dim, .dim_v = 577 - dim, .key_pages = to, .value_pages = to},
              on, edge);
        }
      }
    }
  }
}

TEST(KvAppend, EveryLayout) {
  for (const KvTarget& on : kv_targets()) {
    for (RowsLayout rows :
         {RowsLayout::dense, RowsLayout::gaps, RowsLayout::heads_first, RowsLayout::reversed}) {
      for (PoolLayout pool : {PoolLayout::dense, PoolLayout::gaps, PoolLayout::rows_first}) {
        for (DType to : {DType::bf16, DType::i8}) {
          SCOPED_TRACE(on.name + " rows " + std::to_string(int(rows)) + " pool " + std::to_string(int(pool)));
          compare({.key_pages = to, .value_pages = to, .rows = rows, .pool = pool}, on);
        }
      }
    }
  }
}

// All 65536 values of fp16, row by row with their maximum kept apart, so that every code and tie comes up.
TEST(KvAppend, EveryCode) {
  for (const KvTarget& on : kv_targets()) {
    for (DType to : {DType::i8, DType::f8_e4m3, DType::f8_e5m2}) {
      SCOPED_TRACE(on.name + " " + name_of(to));
      const KvShape shape{.tokens = 248,
                          .heads = 1,
                          .dim = 512,
                          .dim_v = 1,
                          .page_size = 256,
                          .pages = 1,
                          .key = DType::f32,
                          .key_pages = to};
      KvAppendProblem ours(shape), expected(shape);
      const float largest = to == DType::i8 ? 127.0f : to == DType::f8_e4m3 ? 448.0f : 57344.0f;
      for (KvAppendProblem* problem : {&ours, &expected}) {
        for (std::int64_t t = 0; t < shape.tokens; ++t) {
          problem->slot(t) = t;
          set(problem->args.key, {t, 0, 0}, largest);
          for (std::int64_t i = 1; i < shape.dim; ++i) {
            const auto bits = std::uint16_t((t * (shape.dim - 1) + i - 1) % 63488);
            const float x = f32_from_f16(std::uint16_t(bits >= 31744 ? bits - 31744 + 32768 : bits));
            set(problem->args.key, {t, 0, i}, std::abs(x) <= largest ? x : 0);
          }
        }
      }
      ASSERT_TRUE(append_kv_reference(expected.args));
      ASSERT_TRUE(run_on(on, [&] { return append_kv(ours.args, serial_executor()); }));
      expect_same(ours.args, expected.args);
      EXPECT_EQ(get(ours.args.key_scale, {0, 0, 0}), 1);
    }
  }
}

TEST(KvAppend, QuantisedRowsAreNearTheirOrigin) {
  for (DType to : {DType::i8, DType::f8_e4m3, DType::f8_e5m2}) {
    KvAppendProblem p({.tokens = 30, .pages = 2, .key_pages = to, .value_pages = to});
    ASSERT_TRUE(append_kv(p.args, serial_executor()));
    const double of_largest = to == DType::i8        ? 0.5 / 127
                              : to == DType::f8_e4m3 ? 0x1p-10 / 448
                                                     : 0x1p-17 / 57344;
    const double relative = to == DType::i8 ? 0 : to == DType::f8_e4m3 ? 0x1p-4 : 0x1p-3;
    for (std::int64_t t = 0; t < 30; ++t) {
      if (p.slot(t) < 0) continue;
      const std::int64_t page = p.slot(t) / 16, row = p.slot(t) % 16;
      for (std::int64_t h = 0; h < 3; ++h) {
        const double scale = get(p.args.key_scale, {page, h, row});
        for (std::int64_t i = 0; i < 40; ++i) {
          const double x = get(p.args.key, {t, h, i}), y = scale * get(p.args.key_pages, {page, h, row, i});
          const double largest = scale * (to == DType::i8 ? 127 : to == DType::f8_e4m3 ? 448 : 57344);
          EXPECT_NEAR(y, x, std::abs(x) * relative + largest * of_largest + 1e-6 * std::abs(x));
        }
      }
    }
  }
}

TEST(KvAppend, FaultsAndZerosStayInTheirRow) {
  constexpr double kInf = std::numeric_limits<double>::infinity();
  for (const KvTarget& on : kv_targets()) {
    for (DType to : {DType::i8, DType::f8_e4m3, DType::f8_e5m2}) {
      for (double bad : {double(NAN), kInf, -kInf}) {
        for (std::int64_t at : {0, 13, 39}) {
          SCOPED_TRACE(on.name + " " + name_of(to) + " " + std::to_string(bad));
          KvAppendProblem p({.key_pages = to});
          set(p.args.key, {1, 1, at}, bad);
          for (std::int64_t i = 0; i < 40; ++i) {
            set(p.args.key, {2, 0, i}, 0);
            set(p.args.key, {2, 1, i}, i % 2 ? 1e-35 : -1e-38);
          }
          ASSERT_TRUE(run_on(on, [&] { return append_kv(p.args, serial_executor()); }));
          for (std::int64_t t = 0; t < 21; ++t) {
            if (p.slot(t) < 0) continue;
            for (std::int64_t h = 0; h < 3; ++h) {
              const double scale = get(p.args.key_scale, {p.slot(t) / 16, h, p.slot(t) % 16});
              EXPECT_EQ(std::isnan(scale), t == 1 && h == 1) << t << " " << h;
              if (t == 2 && h < 2) {
                EXPECT_EQ(scale, 0);
                for (std::int64_t i = 0; i < 40; ++i)
                  EXPECT_EQ(get(p.args.key_pages, {p.slot(t) / 16, h, p.slot(t) % 16, i}), 0);
              }
            }
          }
        }
      }
    }
  }
}

TEST(KvAppend, SameBitsForAnyThreads) {
  const KvShape shape{.tokens = 3000,
                      .heads = 4,
                      .dim = 64,
                      .dim_v = 64,
                      .page_size = 64,
                      .pages = 60,
                      .key_pages = DType::f8_e4m3};
  KvAppendProblem serial(shape);
  serial.rotate(64, false, DType::f32);
  ASSERT_TRUE(append_kv(serial.args, serial_executor()));
  ReversedExecutor reversed;
  const auto pool = make_thread_pool(3);
  for (Executor* executor : {static_cast<Executor*>(&reversed), pool.get()}) {
    KvAppendProblem parallel(shape);
    parallel.rotate(64, false, DType::f32);
    ASSERT_TRUE(append_kv(parallel.args, *executor));
    expect_same(parallel.args, serial.args);
  }
}

TEST(KvAppend, KeysAlone) {
  KvAppendProblem with({}), without({});
  ASSERT_TRUE(append_kv(with.args, serial_executor()));
  without.args.value = without.args.value_pages = {};
  ASSERT_TRUE(append_kv(without.args, serial_executor()));
  expect_same(without.args.key_pages, with.args.key_pages, "key");
}

TEST(KvAppend, NoTokensAndNoHeads) {
  EXPECT_TRUE(append_kv(KvAppendProblem({.tokens = 0}).args, serial_executor()));
  EXPECT_TRUE(append_kv(KvAppendProblem({.tokens = 3, .heads = 0}).args, serial_executor()));
  EXPECT_TRUE(append_kv(KvAppendProblem({.tokens = 3, .pages = 0}).args, serial_executor()));  // none kept
}

}  // namespace
}  // namespace tileformer::test
