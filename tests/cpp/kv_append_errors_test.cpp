// Every wrong argument is refused by name, before anything is written.
#include <gtest/gtest.h>

#include <functional>

#include "kv_append_problem.h"

namespace tileformer::test {
namespace {

struct Wrong {
  const char* argument;
  const char* given;
  std::function<void(KvAppendProblem&)> make;
};

void expect_refused(const Status& status, const Wrong& wrong) {
  ASSERT_EQ(status.code(), StatusCode::invalid_argument);
  EXPECT_EQ(status.message().find(std::string(wrong.argument) + ": got "), 0u) << status.message();
  EXPECT_NE(status.message().find(wrong.given), std::string::npos) << status.message();
}

std::int64_t& position(KvAppendProblem& p, std::int64_t t) {
  return static_cast<std::int64_t*>(p.args.rotary.positions.data)[t];
}

TEST(KvAppendErrors, NameTheArgument) {
  const Wrong cases[] = {
      {"key", "nothing", [](auto& p) { p.args.key = {}; }},
      {"key", "2 dimensions", [](auto& p) { p.args.key.rank = 2; }},
      {"key", "float64", [](auto& p) { p.args.key.dtype = DType::f64; }},
      {"key", "int8", [](auto& p) { p.args.key.dtype = DType::i8; }},
      {"key", "[21, 3, 577]", [](auto& p) { p.args.key.shape[2] = 577; }},
      {"key", "stride 2", [](auto& p) { p.args.key.stride[2] = 2; }},
      {"key", "null", [](auto& p) { p.args.key.data = nullptr; }},
      {"value", "nothing", [](auto& p) { p.args.value = {}; }},
      {"value", "[20, 3, 24]", [](auto& p) { p.args.value.shape[0] = 20; }},
      {"value", "[21, 2, 24]", [](auto& p) { p.args.value.shape[1] = 2; }},
      {"key_pages", "nothing", [](auto& p) { p.args.key_pages = {}; }},
      {"key_pages", "bool", [](auto& p) { p.args.key_pages.dtype = DType::boolean; }},
      {"key_pages", "[4, 2, 16, 40]", [](auto& p) { p.args.key_pages.shape[1] = 2; }},
      {"key_pages", "[4, 3, 16, 39]", [](auto& p) { p.args.key_pages.shape[3] = 39; }},
      {"key_pages", "[4, 3, 0, 40]", [](auto& p) { p.args.key_pages.shape[2] = 0; }},
      {"key_pages", "stride 0", [](auto& p) { p.args.key_pages.stride[2] = 0; }},
      {"value_pages", "nothing", [](auto& p) { p.args.value_pages = {}; }},
      {"value_pages", "[3, 3, 16, 24]", [](auto& p) { p.args.value_pages.shape[0] = 3; }},
      {"value_pages", "stride 3", [](auto& p) { p.args.value_pages.stride[3] = 3; }},
      {"key_scale", "nothing", [](auto& p) { p.args.key_scale = {}; }},
      {"key_scale", "float16", [](auto& p) { p.args.key_scale.dtype = DType::f16; }},
      {"key_scale", "[4, 3, 8]", [](auto& p) { p.args.key_scale.shape[2] = 8; }},
      {"key_scale", "stride 0", [](auto& p) { p.args.key_scale.stride[0] = 0; }},
      {"value_scale", "float32", [](auto& p) { p.args.value_scale = p.args.key_scale; }},
      {"value_scale", "float32",
       [](auto& p) {
         p.args.value_scale = p.args.key_scale;
         p.args.value = p.args.value_pages = {};
       }},
      {"slots", "nothing", [](auto& p) { p.args.slots = {}; }},
      {"slots", "int32", [](auto& p) { p.args.slots.dtype = DType::i32; }},
      {"slots", "[20]", [](auto& p) { p.args.slots.shape[0] = 20; }},
      {"slots", "64 at [3]", [](auto& p) { p.slot(3) = 64; }},
      {"slots", "-2 at [20]", [](auto& p) { p.slot(20) = -2; }},
      {"slots", "9223372036854775807", [](auto& p) { p.slot(0) = INT64_MAX; }},
      {"cos", "nothing", [](auto& p) { p.args.rotary.cos = {}; }},
      {"cos", "int32", [](auto& p) { p.args.rotary.cos.dtype = DType::i32; }},
      {"cos", "[50, 21]", [](auto& p) { p.args.rotary.cos.shape[1] = 21; }},
      {"sin", "nothing", [](auto& p) { p.args.rotary.sin = {}; }},
      {"sin", "[49, 20]", [](auto& p) { p.args.rotary.sin.shape[0] = 49; }},
      {"sin", "stride 2", [](auto& p) { p.args.rotary.sin.stride[1] = 2; }},
      {"positions", "nothing", [](auto& p) { p.args.rotary.positions = {}; }},
      {"positions", "[22]", [](auto& p) { p.args.rotary.positions.shape[0] = 22; }},
      {"positions", "50 at [5]", [](auto& p) { position(p, 5) = 50; }},
      {"positions", "-1 at [0]", [](auto& p) { position(p, 0) = -1; }},
  };
  for (const Wrong& wrong : cases) {
    SCOPED_TRACE(std::string(wrong.argument) + " " + wrong.given);
    KvAppendProblem problem({.key_pages = DType::i8});
    problem.rotate(40, false, DType::f32);
    const AppendArgs right = problem.args;
    wrong.make(problem);
    expect_refused(append_kv(problem.args, serial_executor()), wrong);
    expect_refused(append_kv_reference(problem.args), wrong);
    for (double x : elements_of(right.key_pages)) ASSERT_EQ(x, -1);
    for (double x : elements_of(right.value_pages)) ASSERT_TRUE(std::isnan(x));
  }
}

TEST(KvAppendErrors, SlotSaysWhatIsAllowed) {
  KvAppendProblem problem({});
  problem.slot(2) = 1000;
  EXPECT_EQ(append_kv(problem.args, serial_executor()).message(),
            "slots: got 1000 at [2], expected -1 to 63: 4 pages of 16");
}

TEST(KvRotaryErrors, NameTheArgument) {
  struct WrongRotary {
    const char* argument;
    const char* given;
    std::function<void(RotaryArgs&)> make;
  };
  const WrongRotary cases[] = {
      {"in", "nothing", [](auto& a) { a.in = {}; }},
      {"in", "int8", [](auto& a) { a.in.dtype = DType::i8; }},
      {"out", "nothing", [](auto& a) { a.out = {}; }},
      {"out", "float32 [21, 3, 40]", [](auto& a) { a.out.dtype = DType::f32; }},
      {"out", "[21, 3, 24]", [](auto& a) { a.out.shape[2] = 24; }},
      {"out", "stride 0", [](auto& a) { a.out.stride[1] = 0; }},
      {"cos", "nothing", [](auto& a) { a.rotary = {}; }},
      {"positions", "nothing", [](auto& a) { a.rotary.positions = {}; }},
  };
  for (const WrongRotary& wrong : cases) {
    SCOPED_TRACE(std::string(wrong.argument) + " " + wrong.given);
    KvAppendProblem problem({});
    RotaryArgs args{problem.args.key, problem.args.key, problem.make_rotary(21, 40, false, DType::f32)};
    wrong.make(args);
    expect_refused(apply_rotary(args, serial_executor()), {wrong.argument, wrong.given, {}});
  }
}

TEST(KvCopyErrors, NameTheArgument) {
  KvAppendProblem problem({});
  const TensorView pools[] = {problem.args.key_pages, problem.args.value_pages};
  const std::pair<const char*, std::vector<PageCopy>> cases[] = {
      {"copies: got page 4", {{0, 4, 3}}},       {"copies: got page -1", {{-1, 2, 3}}},
      {"copies: got 17 rows", {{0, 1, 17}}},     {"copies: got -1 rows", {{0, 1, -1}}},
      {"written twice", {{0, 2, 1}, {1, 2, 1}}}, {"both read and written", {{0, 1, 1}, {1, 2, 1}}},
      {"both read and written", {{3, 3, 1}}}};
  for (const auto& [message, copies] : cases) {
    const Status status = copy_pages(pools, copies, serial_executor());
    EXPECT_FALSE(status);
    EXPECT_NE(status.message().find(message), std::string::npos) << status.message();
  }
  TensorView flat = problem.args.key_pages;
  flat.rank = 2;
  EXPECT_FALSE(copy_pages({&flat, 1}, {}, serial_executor()));
}

}  // namespace
}  // namespace tileformer::test
