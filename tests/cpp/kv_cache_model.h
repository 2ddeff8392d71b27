// A paged cache beside plain lists of the rows that were appended: what every sequence must hold.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <random>
#include <vector>

#include "elements.h"
#include "tileformer/kv_cache.h"

namespace tileformer::test {

// Rows of one sequence as [layer][token][kv_head][dim].
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
    const float *k = key.data(), *v = value.data();
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

// The largest difference between rows in the cache and their origin, as a share of the row's largest element.
inline double worst_error(const PagedKVCache& cache, std::int64_t id, const PlainSequence& plain) {
  const KvCacheOptions& o = cache.options();
  std::int64_t columns = 0, length = 0;
  EXPECT_TRUE(cache.table().length(id, &length));
  EXPECT_EQ(length, plain.length);
  EXPECT_TRUE(cache.table().block_columns({&id, 1}, &columns));
  std::vector<std::int32_t> blocks(static_cast<std::size_t>(columns));
  EXPECT_TRUE(cache.table().block_table({&id, 1}, columns, blocks.data(), nullptr));
  double worst = 0;
  const auto compare = [&](const TensorView& pool, const TensorView& scale, const std::vector<float>& rows) {
    const std::int64_t dim = pool.shape[3];
    const float* x = rows.data();
    for (std::int64_t t = 0; t < length; ++t) {
      const std::int64_t page = blocks[static_cast<std::size_t>(t / o.page_size)], row = t % o.page_size;
      for (std::int64_t h = 0; h < o.kv_heads; ++h, x += dim) {
        float largest = 0;
        for (std::int64_t i = 0; i < dim; ++i) largest = std::max(largest, std::abs(x[i]));
        const double factor = scale ? get(scale, {page, h, row}) : 1;
        for (std::int64_t i = 0; i < dim; ++i) {
          const double error = std::abs(factor * get(pool, {page, h, row, i}) - x[i]) / largest;
          if (!(error <= worst)) worst = error;  // NaN counts
        }
      }
    }
  };
  for (std::int64_t l = 0; l < o.layers && plain.length > 0; ++l) {
    const KvLayer layer = cache.layer(l);
    compare(layer.key, layer.key_scale, plain.layers[static_cast<std::size_t>(l)].key);
    compare(layer.value, layer.value_scale, plain.layers[static_cast<std::size_t>(l)].value);
  }
  return worst;
}

// What storing may cost, as a share of the row's largest element: half a unit in the last place.
inline double storage_error(DType dtype) {
  switch (dtype) {
    case DType::f32: return 0;
    case DType::f16: return 0x1p-11;
    case DType::bf16: return 0x1p-8;
    case DType::i8: return 0.51 / 127;
    case DType::f8_e4m3: return 0x1.01p-4;
    default: return 0x1.01p-3;
  }
}

}  // namespace tileformer::test
