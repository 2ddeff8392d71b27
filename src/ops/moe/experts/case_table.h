// The problems that fused_experts is always tested on: each family varies one thing, the last combines them.
// Kept small, because every case runs on every ISA in every dtype.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tileformer/fused_experts.h"

namespace tileformer::moe {

enum class Routing {
  top_k,      // k experts of a token, each once while there are as many
  one,        // every slot names the last expert
  few,        // the even experts alone
  sentinels,  // a third of the slots names none: -1 or experts, by turns
  none,       // no slot names an expert
};

struct ExpertsCase {
  std::string name = {};
  std::int64_t tokens = 9, k = 2, experts = 4, hidden = 64, inter = 40;
  ExpertActivation activation = ExpertActivation::silu;
  double limit = 7;
  bool interleaved = false;
  bool transposed = false;  // storage of the weights: [experts, in, out]
  bool bias = false;
  std::optional<DType> codes = {};  // of the weights: i8 or i4x2
  std::int64_t group = 32;          // of i4x2
  Routing routing = Routing::top_k;
  bool padded = false;  // rows with gaps between them, weights and experts as [k, tokens]
  bool store = false;   // gate_up_out
  DType index = DType::i64;
  DType weights = DType::f32;
};

namespace case_table {

using Cases = std::vector<ExpertsCase>;

inline void add_tokens(Cases& cases) {
  for (std::int64_t n : {0, 1, 2, 3, 5, 9, 13, 17, 33, 70, 260}) {
    const std::string name = "tokens" + std::to_string(n);
    cases.push_back({.name = name, .tokens = n});
    cases.push_back(
        {.name = name + "_one_expert", .tokens = n, .k = 1, .experts = 1, .hidden = 33, .inter = 22});
    cases.push_back(
        {.name = name + "_all_to_one", .tokens = n, .k = 1, .routing = Routing::one, .store = true});
    cases.push_back({.name = name + "_odd",
                     .tokens = n,
                     .k = 3,
                     .experts = 5,
                     .hidden = 37,
                     .inter = 13,
                     .activation = ExpertActivation::gelu_tanh,
                     .bias = true,
                     .store = n % 2 != 0});
  }
}

inline void add_sizes(Cases& cases) {
  for (std::int64_t hidden : {1, 7, 16, 33, 64, 100, 256})
    for (std::int64_t inter : {1, 5, 22, 40, 96, 176})
      cases.push_back({.name = "size" + std::to_string(hidden) + "_" + std::to_string(inter),
                       .tokens = 2 + (hidden * 7 + inter) % 23,
                       .hidden = hidden,
                       .inter = inter,
                       .store = inter % 2 != 0});
}

inline void add_experts(Cases& cases) {
  for (std::int64_t experts : {1, 2, 3, 4, 5, 6, 7, 8, 128})
    for (std::int64_t k : {1, 2, 3, 4, 6, 8})
      if (k <= experts)
        cases.push_back({.name = "experts" + std::to_string(experts) + "_top" + std::to_string(k),
                         .tokens = 21,
                         .k = k,
                         .experts = experts,
                         .hidden = 40,
                         .inter = 24,
                         .index = k % 2 ? DType::i32 : DType::i64});
  cases.push_back({.name = "no_slots", .k = 0});
}

constexpr std::pair<ExpertActivation, const char*> kActivations[] = {
    {ExpertActivation::silu, "silu"},
    {ExpertActivation::gelu, "gelu"},
    {ExpertActivation::gelu_tanh, "gelu_tanh"},
    {ExpertActivation::swiglu_oai, "swiglu_oai"}};

// The tokens of an expert are few, or fill tiles.
inline void add_features(Cases& cases) {
  for (std::int64_t tokens : {3, 45}) {
    const auto add = [&](std::string name, auto&& change) {
      ExpertsCase c{.name = std::move(name) + "_t" + std::to_string(tokens), .tokens = tokens};
      change(c);
      cases.push_back(std::move(c));
    };
    for (const auto& [activation, name] : kActivations) {
      const ExpertActivation a = activation;
      add(name, [&](ExpertsCase& c) { c.activation = a; });
      add(std::string(name) + "_interleaved_bias",
          [&](ExpertsCase& c) { c.activation = a, c.interleaved = c.bias = true, c.store = true; });
    }
    add("clamped", [](ExpertsCase& c) {
      c.activation = ExpertActivation::swiglu_oai, c.limit = 0.6, c.store = c.bias = true;
    });
    add("interleaved", [](ExpertsCase& c) { c.interleaved = true; });
    add("transposed", [](ExpertsCase& c) { c.transposed = true; });
    add("transposed_padded", [](ExpertsCase& c) { c.transposed = c.padded = true; });
    add("transposed_odd", [](ExpertsCase& c) { c.transposed = true, c.hidden = 37, c.inter = 85, c.k = 1; });
    add("transposed_interleaved_bias",
        [](ExpertsCase& c) { c.transposed = c.interleaved = c.bias = c.store = true; });
    add("padded", [](ExpertsCase& c) { c.padded = c.store = c.bias = true; });
    add("few", [](ExpertsCase& c) { c.routing = Routing::few; });
    add("sentinels", [](ExpertsCase& c) { c.routing = Routing::sentinels, c.store = true; });
    add("sentinels_i32",
        [](ExpertsCase& c) { c.routing = Routing::sentinels, c.index = DType::i32, c.k = 4; });
    add("none", [](ExpertsCase& c) { c.routing = Routing::none, c.store = true; });
    add("repeated", [](ExpertsCase& c) { c.routing = Routing::one, c.k = 3; });
    for (DType weights : {DType::f16, DType::bf16, DType::f64})
      add(std::string("weights_") + name_of(weights), [&](ExpertsCase& c) { c.weights = weights; });
  }
}

inline void add_codes(Cases& cases) {
  for (std::int64_t tokens : {1, 4, 50}) {
    const auto add = [&](std::string name, DType codes, auto&& change) {
      ExpertsCase c{.name = std::move(name) + "_t" + std::to_string(tokens), .tokens = tokens};
      c.codes = codes;
      change(c);
      cases.push_back(std::move(c));
    };
    add("int8", DType::i8, [](ExpertsCase&) {});
    add("int8_odd", DType::i8, [](ExpertsCase& c) { c.hidden = 37, c.inter = 21, c.bias = c.padded = true; });
    add("int8_long", DType::i8, [](ExpertsCase& c) { c.hidden = 330, c.inter = 130; });
    add("int8_interleaved", DType::i8, [](ExpertsCase& c) {
      c.interleaved = c.bias = c.store = true, c.activation = ExpertActivation::swiglu_oai;
    });
    for (std::int64_t group : {32, 64, 128}) {
      const std::string name = "int4_" + std::to_string(group);
      const auto sizes = [&](ExpertsCase& c) { c.group = group, c.hidden = 256, c.inter = 128; };
      add(name, DType::i4x2, sizes);
      add(name + "_features", DType::i4x2, [&](ExpertsCase& c) {
        sizes(c);
        c.interleaved = c.bias = c.padded = true, c.routing = Routing::sentinels;
      });
    }
  }
}

inline void add_combinations(Cases& cases) {
  cases.push_back({.name = "gpt_oss",
                   .tokens = 34,
                   .k = 4,
                   .experts = 8,
                   .hidden = 72,
                   .inter = 72,
                   .activation = ExpertActivation::swiglu_oai,
                   .limit = 1,
                   .interleaved = true,
                   .transposed = true,
                   .bias = true,
                   .routing = Routing::sentinels,
                   .store = true,
                   .index = DType::i64});
  cases.push_back({.name = "many_small", .tokens = 200, .k = 8, .experts = 128, .hidden = 64, .inter = 22});
  cases.push_back(
      {.name = "large", .tokens = 150, .k = 2, .experts = 3, .hidden = 530, .inter = 270, .store = true});
}

}  // namespace case_table

inline std::vector<ExpertsCase> experts_cases() {
  using namespace case_table;
  Cases cases;
  for (auto add : {add_tokens, add_sizes, add_experts, add_features, add_codes, add_combinations}) add(cases);
  return cases;
}

}  // namespace tileformer::moe
