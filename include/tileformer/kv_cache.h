// A paged KV cache that owns its memory: pools of pages for every layer, and one page table for all of them.
//
//   PagedKVCache::create(options, &cache);
//   cache->add(&ids[0]);
//   cache->extend(ids, tokens, slots, executor);                     // room in all layers, once per step
//   for each layer:
//     cache->append(layer, key, value, slots, rotary, executor);     // [tokens, kv_heads, dim]
//     pools = cache->layer(layer);                                   // key, value, scales of AttentionArgs
//   cache->table().block_table(ids, columns, blocks, lengths);
//
// Calls about different sequences may run at the same time in any threads, whatever pages they share. Calls
// about one sequence may not: a sequence is forked, trimmed or swapped out when its appends have returned.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>

#include "tileformer/kv_append.h"
#include "tileformer/page_table.h"

namespace tileformer {

namespace kv_cache {
class Stream;
}

struct KvCacheOptions {
  std::int64_t layers = 1, kv_heads = 1;
  std::int64_t dim = 64, dim_v = 64;       // 1..576
  std::int64_t page_size = 64, pages = 0;  // a multiple of 16 from 16 to 256; pages of every layer
  DType key_dtype = DType::bf16, value_dtype = DType::bf16;  // f32, f16, bf16, i8, f8_e4m3, f8_e5m2
};

// One layer's tensors under their names in AttentionArgs; scales are present if the dtype is quantised.
struct KvLayer {
  TensorView key, value, key_scale, value_scale;
};

class PagedKVCache {
 public:
  // out_of_memory if the system does not grant the memory.
  static Status create(const KvCacheOptions& options, std::unique_ptr<PagedKVCache>* cache);
  ~PagedKVCache();
  PagedKVCache(const PagedKVCache&) = delete;
  PagedKVCache& operator=(const PagedKVCache&) = delete;

  const KvCacheOptions& options() const { return options_; }
  std::size_t bytes() const { return bytes_; }
  // layer is in 0 .. layers-1.
  KvLayer layer(std::int64_t layer) const;
  // Lengths, block tables, counts of pages.
  const PageTable& table() const { return *table_; }

  // As in PageTable.
  Status add(std::int64_t* id) { return table_->add(id); }
  Status fork(std::int64_t id, std::int64_t* copy) { return table_->fork(id, copy); }
  Status fork_prefix(std::int64_t id, std::int64_t length, std::int64_t* copy) {
    return table_->fork_prefix(id, length, copy);
  }
  Status trim(std::int64_t id, std::int64_t length) { return table_->trim(id, length); }
  Status free(std::int64_t id) { return table_->free(id); }

  // As PageTable::extend, with its copies carried out in every layer.
  Status extend(std::span<const std::int64_t> ids, std::span<const std::int64_t> tokens,
                std::span<std::int64_t> slots, Executor& executor);

  // As append_kv into one layer's pools. slots as extend gave them, or -1.
  Status append(std::int64_t layer, const TensorView& key, const TensorView& value,
                std::span<const std::int64_t> slots, const Rotary& rotary, Executor& executor);

  // A sequence out to memory or a file, its pages freed, and back under a new id, into any cache with the
  // same layers, heads, dims and dtypes (page_size may differ). swap_out leaves the sequence where it is if
  // it fails; a file is written beside `path` and renamed, so that there is a whole one or none. swap_in
  // refuses what is truncated or was made by something else, and leaves its source as it is.
  Status swap_bytes(std::int64_t id, std::size_t* bytes) const;
  Status swap_out(std::int64_t id, void* to, std::size_t bytes);
  Status swap_out(std::int64_t id, const std::string& path);
  Status swap_in(const void* from, std::size_t bytes, std::int64_t* id);
  Status swap_in(const std::string& path, std::int64_t* id);

 private:
  PagedKVCache(const KvCacheOptions& options, std::unique_ptr<PageTable> table);
  Status load(std::int64_t length, kv_cache::Stream& stream, std::int64_t* id);

  KvCacheOptions options_;
  std::unique_ptr<PageTable> table_;
  // From the choice of pages to the end of their copies: an extend in between could hand out a page that is
  // still to be read.
  std::mutex extending_;
  void* mapped_ = nullptr;  // memory_ and what it takes to align it
  std::size_t mapped_bytes_ = 0;
  std::uint8_t* memory_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace tileformer
