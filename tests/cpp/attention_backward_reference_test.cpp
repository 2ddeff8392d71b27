// attention_backward_reference against central differences of attention_reference, in fp64: element by
// element for small problems with every feature, and along a random direction for every case of the table.
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "attention_backward_data.h"
#include "case_params.h"
#include "ops/attention/case_table.h"

namespace tileformer::test {
namespace {

TensorView input_view(const AttentionArgs& args, int gradient) {
  switch (gradient) {
    case kQuery: return args.query;
    case kKey: return args.key;
    case kValue: return args.value;
    case kMask: return args.attn_mask;
    default: return args.sinks;
  }
}

class Differences {
 public:
  explicit Differences(const AttentionCase& c) : data_(c, DType::f64), args_(data_.args) {}

  void run() {
    ASSERT_TRUE(attention_reference(args_.forward));
    const Status status = attention_backward_reference(args_);
    ASSERT_TRUE(status) << status.message();
  }

  bool has(int gradient) const {
    return gradient_view(args_, gradient) && input_view(args_.forward, gradient).dtype == DType::f64;
  }

  // The gradient by the element's place in memory: elements at one address share what arrives at all.
  std::map<std::int64_t, double> by_offset(int gradient) const {
    const TensorView input = input_view(args_.forward, gradient), &grad = gradient_view(args_, gradient);
    std::map<std::int64_t, double> sums;
    for_each_index(grad, [&](const Index& at) { sums[offset_of(input, at)] += get(grad, at); });
    return sums;
  }

  // The derivative of the loss when the elements move by the steps.
  double difference(int gradient, const std::map<std::int64_t, double>& steps, double h) const {
    auto* elements = static_cast<double*>(input_view(args_.forward, gradient).data);
    std::map<std::int64_t, double> before;
    for (const auto& [offset, step] : steps) before[offset] = elements[offset];
    double loss[2];
    for (int side : {0, 1}) {
      for (const auto& [offset, step] : steps)
        elements[offset] = before[offset] + (side == 1 ? h : -h) * step;
      loss[side] = this->loss();
    }
    for (const auto& [offset, x] : before) elements[offset] = x;
    return (loss[1] - loss[0]) / (2 * h);
  }

 private:
  // A lse of -inf is a constant, and so, beside its size, is that of a row hidden by the lowest float.
  double loss() const {
    EXPECT_TRUE(attention_reference(args_.forward));
    double sum = 0;
    for_each_index(args_.grad_out,
                   [&](const Index& at) { sum += get(args_.grad_out, at) * get(args_.forward.out, at); });
    if (!args_.grad_lse) return sum;
    for_each_index(args_.grad_lse, [&](const Index& at) {
      const double lse = get(args_.forward.lse, at);
      if (lse > -1e15) sum += get(args_.grad_lse, at) * lse;
    });
    return sum;
  }

  AttentionBackwardData data_;
  const AttentionBackwardArgs& args_;
};

class EveryElement : public testing::TestWithParam<AttentionCase> {};

TEST_P(EveryElement, IsTheDerivative) {
  Differences differences(GetParam());
  differences.run();
  for (int gradient = 0; gradient < kGradients; ++gradient) {
    if (!differences.has(gradient)) continue;
    for (const auto& [offset, expected] : differences.by_offset(gradient)) {
      ASSERT_NEAR(differences.difference(gradient, {{offset, 1.0}}, 1e-5), expected, 1e-7)
          << kGradientNames[gradient] << " element " << offset;
    }
  }
}

std::vector<AttentionCase> small_cases() {
  const AttentionCase base{
      .name = "", .batch = 2, .heads = 4, .kv_heads = 2, .seq_q = 4, .seq_k = 6, .dim = 3, .dim_v = 2};
  const Mask full{.kind = Mask::Kind::f64, .batch = true, .heads = true};
  std::vector<AttentionCase> cases;
  const auto with = [&](const char* name, auto&& change) {
    AttentionCase c = base;
    c.name = name;
    change(c);
    cases.push_back(std::move(c));
  };
  with("plain", [](AttentionCase&) {});
  with("no_grad_lse", [](AttentionCase& c) { c.lse = false; });
  with("scale", [](AttentionCase& c) { c.scale = -0.7f; });
  with("one_head", [](AttentionCase& c) { c.heads = c.kv_heads = 1; });
  with("top_left", [](AttentionCase& c) { c.causal = Causal::top_left; });
  with("bottom_right", [](AttentionCase& c) { c.causal = Causal::bottom_right; });
  with("rows_without_keys", [](AttentionCase& c) { c.causal = Causal::bottom_right, c.seq_q = 9; });
  with("window", [](AttentionCase& c) { c.window_left = 2, c.window_right = 1; });
  with("window_causal", [](AttentionCase& c) { c.causal = Causal::top_left, c.window_left = 1; });
  with("bool_mask", [](AttentionCase& c) { c.mask = {.kind = Mask::Kind::boolean, .heads = true}; });
  with("hidden",
       [](AttentionCase& c) { c.mask = {.kind = Mask::Kind::boolean, .content = Mask::Content::hidden}; });
  with("float_mask", [&](AttentionCase& c) { c.mask = full; });
  with("float_mask_of_queries", [&](AttentionCase& c) { c.mask = full, c.mask.batch = c.mask.keys = false; });
  with("float_mask_of_keys", [&](AttentionCase& c) { c.mask = full, c.mask.heads = c.mask.queries = false; });
  with("float_mask_expanded", [&](AttentionCase& c) {
    c.mask = full, c.mask.heads = c.mask.batch = false, c.mask.order = Mask::Order::expanded;
  });
  with("float_mask_sparse", [&](AttentionCase& c) { c.mask = full, c.mask.order = Mask::Order::sparse; });
  with("softcap", [](AttentionCase& c) { c.softcap = 0.8f; });
  with("softcap_mask", [&](AttentionCase& c) { c.softcap = 1.5f, c.mask = full; });
  with("alibi", [](AttentionCase& c) { c.alibi = true; });
  with("alibi_per_sequence", [](AttentionCase& c) { c.alibi = c.alibi_per_sequence = true; });
  with("sinks", [](AttentionCase& c) { c.sinks = true; });
  with("sinks_alone", [](AttentionCase& c) {
    c.sinks = true, c.mask = {.kind = Mask::Kind::boolean, .content = Mask::Content::hidden};
  });
  with("dropout", [](AttentionCase& c) { c.dropout_p = 0.4f; });
  with("dropout_mask_sinks", [&](AttentionCase& c) { c.dropout_p = 0.2f, c.mask = full, c.sinks = true; });
  with("key_range", [](AttentionCase& c) { c.key_range = true, c.batch = 3; });
  with("query_offset",
       [](AttentionCase& c) { c.query_offset = true, c.causal = Causal::bottom_right, c.batch = 3; });
  with("shared_kv", [](AttentionCase& c) { c.layout = Layout::expanded_kv; });
  const auto packed = [](AttentionCase& c) {
    c.batch = 1;
    c.query_lengths = {3, 0, 1, 2}, c.key_lengths = {4, 2, 0, 5};
    c.seq_q = 6, c.seq_k = 11;
  };
  with("packed", packed);
  with("everything", [&](AttentionCase& c) {
    packed(c);
    c.causal = Causal::bottom_right, c.window_left = 3, c.mask = full, c.mask.batch = false;
    c.softcap = 2, c.alibi = c.sinks = true, c.dropout_p = 0.3f;
  });
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Small, EveryElement, testing::ValuesIn(small_cases()), name_of_case);

class RandomDirection : public testing::TestWithParam<AttentionCase> {};

TEST_P(RandomDirection, IsTheDerivative) {
  Differences differences(GetParam());
  differences.run();
  std::mt19937_64 random(1);
  std::normal_distribution<double> normal;
  // Scores do not move beside the lowest float; there the gradient is that of the weights as they are.
  const bool only_value = GetParam().mask.content == Mask::Content::lowest;
  for (int gradient = 0; gradient < kGradients; ++gradient) {
    if (!differences.has(gradient) || (only_value && gradient != kValue)) continue;
    double expected = 0, squares = 0;
    std::map<std::int64_t, double> direction;
    for (const auto& [offset, x] : differences.by_offset(gradient)) {
      const double step = direction[offset] = normal(random);
      expected += step * x;
      squares += x * x;
    }
    EXPECT_NEAR(differences.difference(gradient, direction, 1e-6), expected, 1e-6 * std::sqrt(squares) + 1e-7)
        << kGradientNames[gradient];
  }
}

INSTANTIATE_TEST_SUITE_P(Table, RandomDirection, testing::ValuesIn(attention::attention_cases()),
                         name_of_case);

}  // namespace
}  // namespace tileformer::test
