#include "tileformer/kv_cache.h"

#include <sys/mman.h>

#include <algorithm>
#include <cassert>
#include <new>
#include <string>
#include <vector>

#include "base/check_view.h"
#include "ops/kv_cache/limits.h"

namespace tileformer {

using namespace kv_cache;

namespace {

constexpr std::size_t kHugePage = std::size_t{2} << 20;

Status check_options(const KvCacheOptions& o) {
  if (Status s = check_pool(o.pages, o.page_size); !s) return s;
  constexpr std::int64_t kMany = INT32_MAX;
  for (const auto& [name, count] : {std::pair{"layers", o.layers}, {"kv_heads", o.kv_heads}})
    if (count < 1 || count > kMany)
      return wrong(name, std::to_string(count), "1 to " + std::to_string(kMany));
  for (const auto& [name, dim] : {std::pair{"dim", o.dim}, {"dim_v", o.dim_v}})
    if (dim < 1 || dim > kMaxHeadDim)
      return wrong(name, std::to_string(dim), "1 to " + std::to_string(kMaxHeadDim));
  for (const auto& [name, dtype] : {std::pair{"key_dtype", o.key_dtype}, {"value_dtype", o.value_dtype}})
    if (!is_quantized(dtype) && (!is_floating(dtype) || dtype == DType::f64))
      return wrong(name, name_of(dtype), "float32, float16, bfloat16, int8, float8_e4m3fn or float8_e5m2");
  return Status::ok();
}

// Where a layer's tensors start, in bytes from the layer's start.
struct LayerBytes {
  std::int64_t value = 0, key_scale = 0, value_scale = 0, all = 0;
};

// False if the cache would not fit into an int64.
bool place(const KvCacheOptions& o, LayerBytes* layer, std::int64_t* all) {
  std::int64_t rows = 0, at = 0;
  if (__builtin_mul_overflow(o.pages * o.page_size, o.kv_heads, &rows)) return false;
  bool fits = true;
  // In whole 4 KiB: every tensor starts on a page of memory, and so on a cache line.
  const auto add = [&](std::int64_t row_bytes) {
    std::int64_t bytes = 0;
    fits = fits && !__builtin_mul_overflow(rows, row_bytes, &bytes) &&
           !__builtin_add_overflow(bytes, std::int64_t{4095}, &bytes) &&
           !__builtin_add_overflow(at, bytes / 4096 * 4096, &at);
  };
  add(o.dim * std::int64_t(size_of(o.key_dtype)));
  layer->value = at;
  add(o.dim_v * std::int64_t(size_of(o.value_dtype)));
  layer->key_scale = at;
  add(is_quantized(o.key_dtype) ? 4 : 0);
  layer->value_scale = at;
  add(is_quantized(o.value_dtype) ? 4 : 0);
  layer->all = at;
  return fits && !__builtin_mul_overflow(at, o.layers, all) &&
         !__builtin_add_overflow(*all, std::int64_t(2 * kHugePage), &at);
}

}  // namespace

PagedKVCache::PagedKVCache(const KvCacheOptions& options, std::unique_ptr<PageTable> table)
    : options_(options), table_(std::move(table)) {}

PagedKVCache::~PagedKVCache() {
  if (mapped_ != nullptr) munmap(mapped_, mapped_bytes_);
}

Status PagedKVCache::create(const KvCacheOptions& options, std::unique_ptr<PagedKVCache>* cache) {
  if (Status s = check_options(options); !s) return s;
  LayerBytes layer;
  std::int64_t bytes = 0;
  if (!place(options, &layer, &bytes))
    return wrong("pages", std::to_string(options.pages), "a cache whose bytes fit in 64 bits");
  std::unique_ptr<PageTable> table;
  if (Status s = PageTable::create(options.pages, options.page_size, &table); !s) return s;
  std::unique_ptr<PagedKVCache> made(new (std::nothrow) PagedKVCache(options, std::move(table)));
  if (made == nullptr) return Status::out_of_memory("the system has no memory left");
  made->bytes_ = static_cast<std::size_t>(bytes);
  if (bytes != 0) {
    // Memory that nobody touched costs nothing; huge pages because attention streams through it (a third of
    // the read bandwidth is lost to TLB misses otherwise, see scratch_buffer.cpp).
    made->mapped_bytes_ = made->bytes_ + kHugePage;
    void* mapped =
        mmap(nullptr, made->mapped_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapped == MAP_FAILED)
      return Status::out_of_memory("pages: got " + std::to_string(options.pages) + ", which need " +
                                   std::to_string(bytes) + " bytes that the system does not grant");
    made->mapped_ = mapped;
    const auto address = reinterpret_cast<std::uintptr_t>(mapped);
    made->memory_ = static_cast<std::uint8_t*>(mapped) + (kHugePage - address % kHugePage) % kHugePage;
    madvise(made->memory_, made->bytes_, MADV_HUGEPAGE);  // advice: failure changes nothing but speed
  }
  *cache = std::move(made);
  return Status::ok();
}

KvLayer PagedKVCache::layer(std::int64_t layer) const {
  assert(layer >= 0 && layer < options_.layers);
  const KvCacheOptions& o = options_;
  LayerBytes at;
  std::int64_t all = 0;
  place(o, &at, &all);
  std::uint8_t* const base = memory_ + layer * at.all;
  KvLayer tensors;
  tensors.key = TensorView::dense(base, o.key_dtype, {o.pages, o.kv_heads, o.page_size, o.dim});
  tensors.value =
      TensorView::dense(base + at.value, o.value_dtype, {o.pages, o.kv_heads, o.page_size, o.dim_v});
  if (is_quantized(o.key_dtype))
    tensors.key_scale =
        TensorView::dense(base + at.key_scale, DType::f32, {o.pages, o.kv_heads, o.page_size});
  if (is_quantized(o.value_dtype))
    tensors.value_scale =
        TensorView::dense(base + at.value_scale, DType::f32, {o.pages, o.kv_heads, o.page_size});
  return tensors;
}

Status PagedKVCache::extend(std::span<const std::int64_t> ids, std::span<const std::int64_t> tokens,
                            std::span<std::int64_t> slots, Executor& executor) {
  const std::lock_guard lock(extending_);
  std::vector<PageCopy> copies;
  if (Status s = table_->extend(ids, tokens, slots, &copies); !s) return s;
  if (copies.empty()) return Status::ok();
  std::vector<TensorView> pools;
  for (std::int64_t l = 0; l < options_.layers; ++l) {
    const KvLayer tensors = layer(l);
    for (const TensorView& pool : {tensors.key, tensors.value, tensors.key_scale, tensors.value_scale})
      if (pool) pools.push_back(pool);
  }
  return copy_pages(pools, copies, executor);
}

Status PagedKVCache::append(std::int64_t layer, const TensorView& key, const TensorView& value,
                            std::span<const std::int64_t> slots, const Rotary& rotary, Executor& executor) {
  if (layer < 0 || layer >= options_.layers)
    return wrong("layer", std::to_string(layer), "0 to " + std::to_string(options_.layers - 1));
  if (!value) return wrong("value", "nothing", "a tensor [tokens, kv_heads, dim_v]");
  const KvLayer tensors = this->layer(layer);
  AppendArgs args;
  args.key = key;
  args.value = value;
  args.key_pages = tensors.key;
  args.value_pages = tensors.value;
  args.key_scale = tensors.key_scale;
  args.value_scale = tensors.value_scale;
  args.slots = TensorView::dense(slots.data(), DType::i64, {static_cast<std::int64_t>(slots.size())});
  args.rotary = rotary;
  return append_kv(args, executor);
}

}  // namespace tileformer
