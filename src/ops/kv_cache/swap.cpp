// A sequence as a stream: a header, then for each layer the key, value, key scale and value scale, each
// [kv_heads, length, ..] without a trace of pages.
#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "base/check_view.h"
#include "ops/kv_cache/limits.h"
#include "ops/kv_cache/swap_file.h"
#include "tileformer/kv_cache.h"

namespace tileformer {

using namespace kv_cache;

namespace {

constexpr char kMagic[8] = {'T', 'F', 'K', 'V', 's', 'e', 'q', '1'};

// In the byte order of the machine: a swapped sequence stays on it.
struct Header {
  char magic[8];
  std::int64_t layers, kv_heads, dim, dim_v, key_dtype, value_dtype;
  std::int64_t length;

  bool same_shape(const Header& other) const {
    return std::memcmp(&layers, &other.layers, 6 * sizeof(std::int64_t)) == 0;
  }
};
static_assert(sizeof(Header) == 64);

Header header_of(const KvCacheOptions& o, std::int64_t length) {
  Header header{{},
                o.layers,
                o.kv_heads,
                o.dim,
                o.dim_v,
                static_cast<std::int64_t>(o.key_dtype),
                static_cast<std::int64_t>(o.value_dtype),
                length};
  std::memcpy(header.magic, kMagic, sizeof kMagic);
  return header;
}

std::string shape_text(const Header& h) {
  const auto dtype = [](std::int64_t code) {
    return code >= 0 && code <= static_cast<std::int64_t>(DType::f8_e5m2) ? name_of(static_cast<DType>(code))
                                                                          : "?";
  };
  return std::to_string(h.layers) + " layers of " + std::to_string(h.kv_heads) + " heads, keys " +
         dtype(h.key_dtype) + " " + std::to_string(h.dim) + ", values " + dtype(h.value_dtype) + " " +
         std::to_string(h.dim_v);
}

// Bytes of a token with all of its layers and heads. A cache holds so many in memory, and they fit there.
std::size_t token_bytes(const KvCacheOptions& o) {
  const auto row = [](DType dtype, std::int64_t dim) {
    return static_cast<std::size_t>(dim) * size_of(dtype) + (is_quantized(dtype) ? sizeof(float) : 0);
  };
  return static_cast<std::size_t>(o.layers * o.kv_heads) *
         (row(o.key_dtype, o.dim) + row(o.value_dtype, o.dim_v));
}

std::size_t stream_bytes(const KvCacheOptions& o, std::int64_t length) {
  return sizeof(Header) + static_cast<std::size_t>(length) * token_bytes(o);
}

Status transfer_rows(const TensorView& pool, std::span<const std::int32_t> blocks, std::int64_t length,
                     Stream& stream) {
  if (!pool) return Status::ok();
  const auto size = static_cast<std::int64_t>(size_of(pool.dtype));
  const std::int64_t page_size = pool.shape[2];
  auto* const base = static_cast<std::uint8_t*>(pool.data);
  for (std::int64_t head = 0; head < pool.shape[1]; ++head) {
    for (std::size_t b = 0; b < blocks.size(); ++b) {
      const std::int64_t rows = std::min(page_size, length - static_cast<std::int64_t>(b) * page_size);
      std::uint8_t* const run = base + (blocks[b] * pool.stride[0] + head * pool.stride[1]) * size;
      if (Status s = stream.transfer(run, static_cast<std::size_t>(rows * pool.stride[2] * size)); !s)
        return s;
    }
  }
  return Status::ok();
}

// The rows of a sequence, to or from the stream.
Status transfer(const PagedKVCache& cache, std::int64_t id, std::int64_t length, Stream& stream) {
  const std::int64_t page_size = cache.options().page_size;
  std::vector<std::int32_t> blocks(static_cast<std::size_t>((length + page_size - 1) / page_size));
  if (Status s = cache.table().block_table({&id, 1}, static_cast<std::int64_t>(blocks.size()), blocks.data(),
                                           nullptr);
      !s) {
    return s;
  }
  for (std::int64_t l = 0; l < cache.options().layers; ++l) {
    const KvLayer layer = cache.layer(l);
    for (const TensorView* pool : {&layer.key, &layer.value, &layer.key_scale, &layer.value_scale})
      if (Status s = transfer_rows(*pool, blocks, length, stream); !s) return s;
  }
  return Status::ok();
}

Status save(const PagedKVCache& cache, std::int64_t id, Stream& stream) {
  std::int64_t length = 0;
  if (Status s = cache.table().length(id, &length); !s) return s;
  Header header = header_of(cache.options(), length);
  if (Status s = stream.transfer(&header, sizeof header); !s) return s;
  return transfer(cache, id, length, stream);
}

// The header of a stream of so many bytes, which must suit the cache.
Status read_header(const char* argument, const KvCacheOptions& options, std::size_t bytes, Stream& stream,
                   std::int64_t* length) {
  const auto foreign = [&] {
    return wrong(argument, "something else (" + std::to_string(bytes) + " bytes)", "what swap_out wrote");
  };
  Header header;
  if (bytes < sizeof header) return foreign();
  if (Status s = stream.transfer(&header, sizeof header); !s) return s;
  if (std::memcmp(header.magic, kMagic, sizeof kMagic) != 0) return foreign();
  const Header expected = header_of(options, header.length);
  if (!header.same_shape(expected))
    return wrong(argument, "a sequence of " + shape_text(header), shape_text(expected));
  if (header.length < 0 || header.length > kMaxSequenceLength) return foreign();
  if (bytes != stream_bytes(options, header.length))
    return wrong(argument, std::to_string(bytes) + " bytes, truncated or too many",
                 std::to_string(stream_bytes(options, header.length)) + " for a sequence of " +
                     std::to_string(header.length) + " tokens");
  *length = header.length;
  return Status::ok();
}

}  // namespace

Status PagedKVCache::swap_bytes(std::int64_t id, std::size_t* bytes) const {
  std::int64_t length = 0;
  if (Status s = table_->length(id, &length); !s) return s;
  *bytes = stream_bytes(options_, length);
  return Status::ok();
}

Status PagedKVCache::swap_out(std::int64_t id, void* to, std::size_t bytes) {
  std::size_t needed = 0;
  if (Status s = swap_bytes(id, &needed); !s) return s;
  if (to == nullptr || bytes < needed)
    return wrong("bytes", to == nullptr ? "a null pointer" : std::to_string(bytes),
                 "memory for " + std::to_string(needed) + " bytes");
  MemoryWriter memory(to, needed);
  if (Status s = save(*this, id, memory); !s) return s;
  return table_->free(id);
}

Status PagedKVCache::swap_out(std::int64_t id, const std::string& path) {
  std::int64_t length = 0;
  if (Status s = table_->length(id, &length); !s) return s;
  FileWriter file(path);
  if (Status s = file.open(); !s) return s;
  if (Status s = save(*this, id, file); !s) return s;
  if (Status s = file.finish(); !s) return s;
  return table_->free(id);
}

Status PagedKVCache::load(std::int64_t length, Stream& stream, std::int64_t* id) {
  std::int64_t made = 0;
  if (Status s = table_->add(&made); !s) return s;
  Status result;
  {
    const std::lock_guard lock(extending_);
    std::vector<std::int64_t> slots(static_cast<std::size_t>(length));
    std::vector<PageCopy> none;
    result = table_->extend({&made, 1}, {&length, 1}, slots, &none);
  }
  if (result) result = transfer(*this, made, length, stream);
  if (!result) {
    if (Status s = table_->free(made); !s) return s;
    return result;
  }
  *id = made;
  return result;
}

Status PagedKVCache::swap_in(const void* from, std::size_t bytes, std::int64_t* id) {
  if (from == nullptr) return wrong("from", "a null pointer", "what swap_out wrote");
  MemoryReader memory(from, bytes);
  std::int64_t length = 0;
  if (Status s = read_header("from", options_, bytes, memory, &length); !s) return s;
  return load(length, memory, id);
}

Status PagedKVCache::swap_in(const std::string& path, std::int64_t* id) {
  FileReader file(path);
  std::size_t bytes = 0;
  if (Status s = file.open(&bytes); !s) return s;
  std::int64_t length = 0;
  if (Status s = read_header("path", options_, bytes, file, &length); !s) return s;
  return load(length, file, id);
}

}  // namespace tileformer
