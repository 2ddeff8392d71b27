// Random problems of experts, all features in any combination; the same one for the same seed.
#pragma once

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <random>
#include <string>

#include "ops/moe/experts/case_table.h"

namespace tileformer::test {

class RandomExperts {
 public:
  explicit RandomExperts(std::uint64_t seed) : random_(seed) {}

  DType dtype() { return pick({DType::f32, DType::f16, DType::bf16}); }

  moe::ExpertsCase make(bool backward) {
    moe::ExpertsCase c;
    c.experts = chance(0.1) ? 128 : integer(1, 9);
    c.k = chance(0.05) ? 0 : integer(1, std::min<std::int64_t>(c.experts, 8));
    c.tokens = chance(0.05) ? 0 : chance(0.5) ? integer(1, 8) : integer(1, 150);
    c.hidden = size();
    c.inter = size();
    c.activation = pick({ExpertActivation::silu, ExpertActivation::gelu, ExpertActivation::gelu_tanh,
                         ExpertActivation::swiglu_oai});
    c.interleaved = chance(0.4);
    c.bias = chance(0.4);
    c.store = chance(0.5);
    // Where gate and up are computed again, one beside the limit may fall on either side of it, where the
    // derivative jumps.
    if (!backward || c.store)
      c.limit = pick({0.5, 1.0, 7.0});
    else
      c.limit = 100;
    c.routing = pick({moe::Routing::top_k, moe::Routing::top_k, moe::Routing::one, moe::Routing::few,
                      moe::Routing::sentinels, moe::Routing::none});
    c.padded = chance(0.3);
    c.index = pick({DType::i32, DType::i64});
    c.weights = pick({DType::f32, DType::f32, DType::f16, DType::bf16, DType::f64});
    if (!backward && chance(0.3)) {
      c.codes = pick({DType::i8, DType::i4x2});
      if (c.codes == DType::i4x2) {
        c.group = pick<std::int64_t>({32, 64, 128});
        c.hidden = c.group * integer(1, 3);
        c.inter = c.group * integer(1, 3);
      }
    } else {
      c.transposed = chance(0.3);
    }
    c.name = std::to_string(c.tokens) + " tokens, top " + std::to_string(c.k) + " of " +
             std::to_string(c.experts) + ", " + std::to_string(c.hidden) + " x " + std::to_string(c.inter) +
             ", " + name_of(c.activation);
    return c;
  }

 private:
  std::int64_t integer(std::int64_t low, std::int64_t high) {
    return std::uniform_int_distribution<std::int64_t>(low, high)(random_);
  }
  bool chance(double p) { return std::uniform_real_distribution<double>()(random_) < p; }
  template <typename T>
  T pick(std::initializer_list<T> choices) {
    return choices.begin()[integer(0, static_cast<std::int64_t>(choices.size()) - 1)];
  }
  std::int64_t size() {
    return chance(0.4)   ? pick<std::int64_t>({16, 32, 64, 96, 128})
           : chance(0.9) ? integer(1, 130)
                         : integer(1, 700);
  }

  std::mt19937_64 random_;
};

}  // namespace tileformer::test
