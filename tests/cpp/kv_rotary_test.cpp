// Rotation against fp64, in keys on their way into pages and in queries.
#include <gtest/gtest.h>

#include "kv_append_problem.h"

namespace tileformer::test {
namespace {

// Element i of a row, rotated, in fp64.
double rotated(const TensorView& x, const Rotary& r, std::int64_t t, std::int64_t h, std::int64_t i) {
  const std::int64_t half = r.cos.shape[1];
  if (i >= 2 * half) return get(x, {t, h, i});
  const std::int64_t position = static_cast<const std::int64_t*>(r.positions.data)[t];
  const std::int64_t pair = r.interleaved ? i / 2 : i % half;
  const bool second = r.interleaved ? i % 2 == 1 : i >= half;
  const double a = get(x, {t, h, r.interleaved ? 2 * pair : pair});
  const double b = get(x, {t, h, r.interleaved ? 2 * pair + 1 : pair + half});
  const double c = get(r.cos, {position, pair}), s = get(r.sin, {position, pair});
  return second ? b * c + a * s : a * c - b * s;
}

// Half a unit in the last place beside fp32 arithmetic on numbers of up to 200.
double tolerance(DType dtype, double expected) {
  const double relative = dtype == DType::bf16 ? 0x1p-8 : dtype == DType::f16 ? 0x1p-11 : 0;
  return std::abs(expected) * relative + 4e-5;
}

struct Turn {
  std::int64_t dim, rotary_dim;
  bool interleaved;
};
constexpr Turn kTurns[] = {{40, 40, false}, {40, 40, true},   {40, 16, false}, {40, 16, true},
                           {7, 6, false},   {7, 6, true},     {3, 2, false},   {576, 576, false},
                           {576, 64, true}, {130, 66, false}, {96, 0, false}};

template <typename Check>
void on_every_turn(Check check) {
  for (const KvTarget& on : kv_targets()) {
    for (DType dtype : {DType::f32, DType::f16, DType::bf16}) {
      for (DType angles : {DType::f32, dtype}) {
        for (const Turn& turn : kTurns) {
          SCOPED_TRACE(on.name + " " + name_of(dtype) + " cos " + name_of(angles) + " dim " +
                       std::to_string(turn.dim) + " rotary " + std::to_string(turn.rotary_dim) +
                       (turn.interleaved ? " interleaved" : ""));
          check(on, dtype, angles, turn);
        }
      }
    }
  }
}

TEST(KvRotary, OfKeysInTheSamePass) {
  on_every_turn([](const KvTarget& on, DType dtype, DType angles, const Turn& turn) {
    for (DType to : {dtype, DType::f32, DType::i8}) {
      KvAppendProblem p({.tokens = 10, .dim = turn.dim, .key = dtype, .key_pages = to});
      KvAppendProblem plain({.tokens = 10, .dim = turn.dim, .key = dtype, .key_pages = to});
      p.rotate(turn.rotary_dim, turn.interleaved, angles);
      ASSERT_TRUE(run_on(on, [&] { return append_kv(p.args, serial_executor()); }));
      ASSERT_TRUE(append_kv(plain.args, serial_executor()));
      for (std::int64_t t = 0; t < 10; ++t) {
        const std::int64_t slot = p.slot(t), page = slot / 16, row = slot % 16;
        if (slot < 0) continue;
        for (std::int64_t h = 0; h < 3; ++h) {
          const double scale = to == DType::i8 ? get(p.args.key_scale, {page, h, row}) : 1;
          const double step = to == DType::i8 ? scale / 2 : 0;
          for (std::int64_t i = 0; i < turn.dim; ++i) {
            const double want = rotated(p.args.key, p.args.rotary, t, h, i);
            ASSERT_NEAR(scale * get(p.args.key_pages, {page, h, row, i}), want, tolerance(to, want) + step);
          }
          for (std::int64_t i = 0; i < 24; ++i)  // values do not turn
            ASSERT_EQ(get(p.args.value_pages, {page, h, row, i}),
                      get(plain.args.value_pages, {page, h, row, i}));
        }
      }
      EXPECT_TRUE(p.tensors().clear_outputs());
    }
  });
}

TEST(KvRotary, OfQueriesApartAndInPlace) {
  on_every_turn([](const KvTarget& on, DType dtype, DType angles, const Turn& turn) {
    KvAppendProblem p({.tokens = 10, .dim = turn.dim, .key = dtype, .rows = RowsLayout::gaps});
    RotaryArgs args;
    args.in = p.args.key;
    args.rotary = p.make_rotary(10, turn.rotary_dim, turn.interleaved, angles);
    args.out = p.tensors().allocate_output(dtype, 3, {10, 3, turn.dim}, {turn.dim, 10 * turn.dim + 3, 1});
    ASSERT_TRUE(run_on(on, [&] { return apply_rotary(args, serial_executor()); }));
    for_each_index(args.out, [&](const Index& at) {
      const double want = rotated(args.in, args.rotary, at[0], at[1], at[2]);
      ASSERT_NEAR(get(args.out, at), want, tolerance(dtype, want));
    });
    RotaryArgs in_place = args;
    in_place.out = in_place.in;
    ASSERT_TRUE(run_on(on, [&] { return apply_rotary(in_place, serial_executor()); }));
    EXPECT_TRUE(same_bits(elements_of(in_place.out), elements_of(args.out)));
    EXPECT_TRUE(p.tensors().clear_outputs());
  });
}

}  // namespace
}  // namespace tileformer::test
