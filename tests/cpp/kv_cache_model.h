// A paged cache beside plain lists of the rows that were appended: what every sequence must hold.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "elements.h"
#include "tileformer/kv_cache.h"

namespace tileformer::test {

// Rows of one sequence as [layer][token][kv_head][dim]: what storing has made of them, as fp32.
struct PlainSequence {
  struct Layer {
    std::vector<float> key, value;
  };
  std::vector<Layer> layers;
  std::int64_t length = 0;
};

inline std::unique_ptr<PagedKVCache> make_cache(const KvCacheOptions& options) {
  std::unique_ptr<PagedKVCache> cache;
  const Status status = PagedKVCache::create(options, &cache);
  EXPECT_TRUE(status) << status.message();
  return cache;
}

// NaN everywhere: what lies beyond a length must not show.
inline void poison(const PagedKVCache& cache) {
  for (std::int64_t l = 0; l < cache.options().layers; ++l) {
    const KvLayer layer = cache.layer(l);
    for (const TensorView* t : {&layer.key, &layer.value, &layer.key_scale, &layer.value_scale})
      if (*t) std::memset(t->data, 0xFF, static_cast<std::size_t>(t->elements()) * size_of(t->dtype));
  }
}

// The rows as they come out of storage in `stored`, by the reference.
inline std::vector<float> as_stored(const std::vector<float>& rows, std::int64_t heads, std::int64_t dim,
                                    DType stored) {
  const auto tokens = static_cast<std::int64_t>(rows.size()) / (heads * dim);
  std::vector<std::uint8_t> codes(rows.size() * size_of(stored));
  std::vector<float> scales(static_cast<std::size_t>(tokens * heads), 1);
  std::vector<std::int64_t> slots(static_cast<std::size_t>(tokens));
  for (std::int64_t t = 0; t < tokens; ++t) slots[static_cast<std::size_t>(t)] = t;
  AppendArgs args;
  args.key = TensorView::dense(rows.data(), DType::f32, {tokens, heads, dim});
  args.key_pages = TensorView(codes.data(), stored, {1, heads, tokens, dim}, {0, dim, heads * dim, 1});
  if (is_quantized(stored))
    args.key_scale = TensorView(scales.data(), DType::f32, {1, heads, tokens}, {0, 1, heads});
  args.slots = TensorView::dense(slots.data(), DType::i64, {tokens});
  const Status status = tokens == 0 ? Status::ok() : append_kv_reference(args);
  EXPECT_TRUE(status) << status.message();
  std::vector<float> out(rows.size());
  for (std::size_t i = 0; i < out.size(); ++i)
    out[i] = scales[i / static_cast<std::size_t>(dim)] *
             static_cast<float>(load_element(codes.data(), stored, static_cast<std::int64_t>(i)));
  return out;
}

// New tokens, the same in the cache and in the plain lists. Each sequence has its own entry in `plain`.
template <typename Random>
Status append_tokens(PagedKVCache& cache, const std::vector<std::int64_t>& ids,
                     const std::vector<std::int64_t>& tokens, const std::vector<PlainSequence*>& plain,
                     Random& random, Executor& executor = serial_executor()) {
  std::int64_t total = 0;
  for (std::int64_t n : tokens) total += n;
  std::vector<std::int64_t> slots(static_cast<std::size_t>(total));
  if (Status s = cache.extend(ids, tokens, slots, executor); !s) return s;
  const KvCacheOptions& o = cache.options();
  std::normal_distribution<float> normal;
  std::vector<float> key(static_cast<std::size_t>(total * o.kv_heads * o.dim));
  std::vector<float> value(static_cast<std::size_t>(total * o.kv_heads * o.dim_v));
  for (std::int64_t l = 0; l < o.layers; ++l) {
    for (float& x : key) x = normal(random);
    for (float& x : value) x = normal(random);
    if (Status s = cache.append(l, TensorView::dense(key.data(), DType::f32, {total, o.kv_heads, o.dim}),
                                TensorView::dense(value.data(), DType::f32, {total, o.kv_heads, o.dim_v}),
                                slots, {}, executor);
        !s) {
      return s;
    }
    const std::vector<float> stored_key = as_stored(key, o.kv_heads, o.dim, o.key_dtype);
    const std::vector<float> stored_value = as_stored(value, o.kv_heads, o.dim_v, o.value_dtype);
    const float *k = stored_key.data(), *v = stored_value.data();
    for (std::size_t i = 0; i < ids.size(); ++i) {
      plain[i]->layers.resize(static_cast<std::size_t>(o.layers));
      PlainSequence::Layer& layer = plain[i]->layers[static_cast<std::size_t>(l)];
      layer.key.insert(layer.key.end(), k, k + tokens[i] * o.kv_heads * o.dim);
      layer.value.insert(layer.value.end(), v, v + tokens[i] * o.kv_heads * o.dim_v);
      k += tokens[i] * o.kv_heads * o.dim;
      v += tokens[i] * o.kv_heads * o.dim_v;
    }
  }
  for (std::size_t i = 0; i < ids.size(); ++i) plain[i]->length += tokens[i];
  return Status::ok();
}

inline void trim_plain(PlainSequence& plain, const KvCacheOptions& o, std::int64_t length) {
  for (PlainSequence::Layer& layer : plain.layers) {
    layer.key.resize(static_cast<std::size_t>(length * o.kv_heads * o.dim));
    layer.value.resize(static_cast<std::size_t>(length * o.kv_heads * o.dim_v));
  }
  plain.length = length;
}

// Empty if every row of the sequence is in the cache, bit for bit; else the first that is not.
inline std::string difference(const PagedKVCache& cache, std::int64_t id, const PlainSequence& plain) {
  const KvCacheOptions& o = cache.options();
  std::int64_t columns = 0, length = 0;
  if (Status s = cache.table().length(id, &length); !s) return s.message();
  if (length != plain.length)
    return "length " + std::to_string(length) + ", not " + std::to_string(plain.length);
  if (Status s = cache.table().block_columns({&id, 1}, &columns); !s) return s.message();
  std::vector<std::int32_t> blocks(static_cast<std::size_t>(columns));
  if (Status s = cache.table().block_table({&id, 1}, columns, blocks.data(), nullptr); !s) return s.message();
  const auto compare = [&](const TensorView& pool, const TensorView& scale, const std::vector<float>& rows) {
    const float* x = rows.data();
    for (std::int64_t t = 0; t < length; ++t) {
      const std::int64_t page = blocks[static_cast<std::size_t>(t / o.page_size)], row = t % o.page_size;
      for (std::int64_t h = 0; h < o.kv_heads; ++h) {
        const float factor = scale ? static_cast<float>(get(scale, {page, h, row})) : 1;
        for (std::int64_t i = 0; i < pool.shape[3]; ++i, ++x) {
          const float stored = factor * static_cast<float>(get(pool, {page, h, row, i}));
          if (stored != *x)
            return "token " + std::to_string(t) + " head " + std::to_string(h) + " element " +
                   std::to_string(i) + ": " + std::to_string(stored) + ", not " + std::to_string(*x);
        }
      }
    }
    return std::string();
  };
  for (std::int64_t l = 0; l < o.layers && plain.length > 0; ++l) {
    const KvLayer layer = cache.layer(l);
    const PlainSequence::Layer& rows = plain.layers[static_cast<std::size_t>(l)];
    if (std::string d = compare(layer.key, layer.key_scale, rows.key); !d.empty()) return "key " + d;
    if (std::string d = compare(layer.value, layer.value_scale, rows.value); !d.empty()) return "value " + d;
  }
  return "";
}

}  // namespace tileformer::test
