// Random attention problems, all features in any combination; the same one for the same seed.
#pragma once

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <random>
#include <string>

#include "ops/attention/cases.h"

namespace tileformer::test {

using attention::AttentionCase;
using attention::Layout;
using attention::Mask;
using attention::Values;

class RandomCase {
 public:
  explicit RandomCase(std::uint64_t seed) : random_(seed) {}

  DType dtype() { return pick({DType::f32, DType::f16, DType::bf16}); }

  // Every third problem has its keys in pages.
  AttentionCase make_forward() {
    AttentionCase c = make();
    if (!chance(0.35)) return c;
    c.page_size = pick<std::int64_t>({16, 16, 32, 48, 64, 256});
    if (!c.packed()) {
      for (std::int64_t n = 0; n < c.batch; ++n) c.key_lengths.push_back(length());
    }
    if (chance(0.1)) {
      for (std::int64_t keys : c.key_lengths) c.page_size = std::max(c.page_size, keys + 1);
    }
    if (chance(0.6)) c.key_dtype = page_dtype();
    if (chance(0.6)) c.value_dtype = page_dtype();
    if (chance(0.1)) {
      c.value_in_key = true;
      c.dim_v = integer(1, c.dim);
    }
    c.set_totals();
    c.name += " pages of " + std::to_string(c.page_size) + ", " + name_of(c.key_dtype.value_or(DType::i32)) +
              "/" + name_of(c.value_dtype.value_or(DType::i32));
    return c;
  }

  AttentionCase make() {
    AttentionCase c;
    c.batch = integer(1, 3);
    c.kv_heads = integer(1, 3);
    c.heads = c.kv_heads * pick({1, 1, 2, 3, 4, 7});
    c.dim = dim();
    c.dim_v = chance(0.7) ? c.dim : dim();
    c.seq_q = length();
    c.seq_k = chance(0.3) ? c.seq_q : length();
    if (chance(0.3)) pack(c);
    c.causal = pick({Causal::none, Causal::top_left, Causal::bottom_right});
    if (chance(0.3)) c.window_left = integer(0, 100);
    if (chance(0.2)) c.window_right = integer(0, 100);
    if (chance(0.5)) c.mask = mask();
    c.alibi = chance(0.2);
    c.alibi_per_sequence = c.alibi && chance(0.5);
    if (chance(0.2)) c.softcap = static_cast<float>(integer(1, 30));
    c.sinks = chance(0.2);
    c.lse = chance(0.8);
    c.key_range = chance(0.2);
    c.query_offset = chance(0.2);
    c.layout = pick({Layout::bhsd, Layout::bshd, Layout::padded, Layout::reversed, Layout::expanded_kv});
    c.values = pick({Values::normal, Values::normal, Values::large, Values::growing, Values::shifted});
    if (chance(0.2)) c.dropout_p = static_cast<float>(integer(1, 9)) / 10;
    if (chance(0.2)) c.scale = static_cast<float>(integer(-20, 40)) / 100;
    c.name = "[" + std::to_string(c.batch) + ", " + std::to_string(c.heads) + "/" +
             std::to_string(c.kv_heads) + ", " + std::to_string(c.seq_q) + "x" + std::to_string(c.seq_k) +
             ", " + std::to_string(c.dim) + "/" + std::to_string(c.dim_v) + "]";
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

  std::int64_t dim() {
    return chance(0.6)   ? pick<std::int64_t>({16, 32, 64, 80, 96, 128})
           : chance(0.8) ? integer(1, 160)
                         : integer(1, 576);
  }
  DType page_dtype() {
    return pick({DType::f32, DType::f16, DType::bf16, DType::i8, DType::f8_e4m3, DType::f8_e5m2});
  }
  std::int64_t length() {
    return chance(0.2) ? 1 : chance(0.05) ? 0 : chance(0.8) ? integer(1, 80) : integer(80, 400);
  }

  void pack(AttentionCase& c) {
    c.batch = 1;
    c.seq_q = c.seq_k = 0;
    for (std::int64_t n = integer(1, 5); n > 0; --n) {
      c.query_lengths.push_back(chance(0.1) ? 0 : chance(0.3) ? 1 : integer(1, 60));
      c.key_lengths.push_back(chance(0.3) ? c.query_lengths.back() : chance(0.1) ? 0 : integer(1, 150));
      c.seq_q += c.query_lengths.back();
      c.seq_k += c.key_lengths.back();
    }
  }

  Mask mask() {
    Mask m;
    m.kind = pick(
        {Mask::Kind::boolean, Mask::Kind::boolean, Mask::Kind::like_query, Mask::Kind::f32, Mask::Kind::f64});
    m.content = pick({Mask::Content::random, Mask::Content::random, Mask::Content::blocks,
                      Mask::Content::hidden, Mask::Content::lowest});
    m.order = pick({Mask::Order::dense, Mask::Order::transposed, Mask::Order::sparse, Mask::Order::expanded});
    m.batch = chance(0.5);
    m.heads = chance(0.5);
    m.queries = chance(0.7);
    m.keys = chance(0.9);
    return m;
  }

  std::mt19937_64 random_;
};

}  // namespace tileformer::test
