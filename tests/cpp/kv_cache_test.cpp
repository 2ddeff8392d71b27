// The cache that owns its memory: what goes in comes out, through forks, trims and swaps.
#include <gtest/gtest.h>

#include <sys/stat.h>

#include <cstdio>
#include <filesystem>
#include <fstream>

#include "kv_cache_model.h"

namespace tileformer::test {
namespace {

const KvCacheOptions kSmall{.layers = 2, .kv_heads = 2, .dim = 24, .dim_v = 40, .page_size = 16, .pages = 12};

class Directory {
 public:
  Directory() {
    std::string name = std::filesystem::temp_directory_path() / "tileformer-swap-XXXXXX";
    if (mkdtemp(name.data()) == nullptr) std::abort();
    path_ = name;
  }
  ~Directory() { std::filesystem::remove_all(path_); }
  std::string file(const char* name) const { return path_ / name; }
  std::size_t files() const {
    return static_cast<std::size_t>(std::distance(std::filesystem::directory_iterator(path_), {}));
  }

 private:
  std::filesystem::path path_;
};

class KvCache : public ::testing::TestWithParam<std::pair<DType, DType>> {
 protected:
  KvCacheOptions options() const {
    KvCacheOptions o = kSmall;
    o.key_dtype = GetParam().first;
    o.value_dtype = GetParam().second;
    return o;
  }
  std::mt19937 random_{5};
};

TEST_P(KvCache, ForkedSequencesGrowApart) {
  const auto cache = make_cache(options());
  poison(*cache);
  std::int64_t a, b, c;
  PlainSequence plain_a;
  ASSERT_TRUE(cache->add(&a));
  ASSERT_TRUE(append_tokens(*cache, {a}, {21}, {&plain_a}, random_));
  ASSERT_TRUE(cache->fork(a, &b));
  ASSERT_TRUE(cache->fork_prefix(a, 18, &c));
  PlainSequence plain_b = plain_a, plain_c = plain_a;
  trim_plain(plain_c, cache->options(), 18);
  EXPECT_EQ(cache->table().used_pages(), 2);
  ASSERT_TRUE(append_tokens(*cache, {a, b, c}, {1, 30, 5}, {&plain_a, &plain_b, &plain_c}, random_));
  ASSERT_TRUE(cache->trim(b, 19));
  trim_plain(plain_b, cache->options(), 19);
  ASSERT_TRUE(append_tokens(*cache, {b}, {4}, {&plain_b}, random_));
  EXPECT_EQ(difference(*cache, a, plain_a), "");
  EXPECT_EQ(difference(*cache, b, plain_b), "");
  EXPECT_EQ(difference(*cache, c, plain_c), "");
  for (std::int64_t id : {a, b, c}) ASSERT_TRUE(cache->free(id));
  EXPECT_EQ(cache->table().used_pages(), 0);
  EXPECT_TRUE(cache->table().verify());
}

TEST_P(KvCache, SwapsOutAndIn) {
  const Directory directory;
  const auto cache = make_cache(options());
  KvCacheOptions larger = options();
  larger.page_size = 48;
  const auto other = make_cache(larger);
  for (std::int64_t length : {0, 1, 16, 37}) {
    for (bool file : {false, true}) {
      SCOPED_TRACE(std::to_string(length) + (file ? " file" : " memory"));
      poison(*cache);
      std::int64_t a, fork;
      PlainSequence plain;
      ASSERT_TRUE(cache->add(&a));
      ASSERT_TRUE(append_tokens(*cache, {a}, {length}, {&plain}, random_));
      ASSERT_TRUE(cache->fork(a, &fork));
      std::size_t bytes = 0;
      ASSERT_TRUE(cache->swap_bytes(a, &bytes));
      std::vector<std::uint8_t> memory(bytes);
      const std::string path = directory.file("sequence");
      const Status out = file ? cache->swap_out(a, path) : cache->swap_out(a, memory.data(), bytes);
      ASSERT_TRUE(out) << out.message();
      EXPECT_TRUE(!file || std::filesystem::file_size(path) == bytes);
      EXPECT_EQ(difference(*cache, fork, plain), "");
      ASSERT_TRUE(cache->free(fork));
      EXPECT_EQ(cache->table().used_pages(), 0);
      poison(*cache);
      for (PagedKVCache* into : {cache.get(), cache.get(), other.get()}) {  // as often as one likes
        std::int64_t back;
        const Status in = file ? into->swap_in(path, &back) : into->swap_in(memory.data(), bytes, &back);
        ASSERT_TRUE(in) << in.message();
        EXPECT_TRUE(back != a || into == other.get());
        EXPECT_EQ(difference(*into, back, plain), "");
        ASSERT_TRUE(append_tokens(*into, {back}, {3}, {&plain}, random_));
        EXPECT_EQ(difference(*into, back, plain), "");
        trim_plain(plain, cache->options(), length);
        ASSERT_TRUE(into->free(back));
      }
    }
  }
  EXPECT_EQ(directory.files(), 1u);
}

INSTANTIATE_TEST_SUITE_P(DTypes, KvCache,
                         ::testing::Values(std::pair{DType::bf16, DType::bf16},
                                           std::pair{DType::f32, DType::f16},
                                           std::pair{DType::i8, DType::bf16},
                                           std::pair{DType::f8_e4m3, DType::f8_e5m2},
                                           std::pair{DType::f16, DType::i8}),
                         [](const auto& info) {
                           return std::string(name_of(info.param.first)) + "_" + name_of(info.param.second);
                         });

TEST(KvCacheSwap, RefusesWhatIsNotASequenceOfItsShape) {
  const Directory directory;
  const auto cache = make_cache(kSmall);
  std::mt19937 random(1);
  std::int64_t id, back;
  PlainSequence plain;
  ASSERT_TRUE(cache->add(&id));
  ASSERT_TRUE(append_tokens(*cache, {id}, {20}, {&plain}, random));
  const std::string path = directory.file("whole");
  ASSERT_TRUE(cache->swap_out(id, path));
  const std::size_t bytes = std::filesystem::file_size(path);
  const auto refused = [&](PagedKVCache& by, const std::string& file, const char* part) {
    const Status status = by.swap_in(file, &back);
    EXPECT_FALSE(status);
    EXPECT_EQ(status.message().find("path: got "), 0u) << status.message();
    EXPECT_NE(status.message().find(part), std::string::npos) << status.message();
    EXPECT_EQ(by.table().used_pages(), 0);
    EXPECT_EQ(by.table().sequences(), 0);
  };
  for (std::size_t kept : {std::size_t{0}, std::size_t{63}, std::size_t{64}, bytes - 1, bytes + 1}) {
    SCOPED_TRACE(kept);
    const std::string cut = directory.file("cut");
    std::filesystem::copy_file(path, cut, std::filesystem::copy_options::overwrite_existing);
    std::filesystem::resize_file(cut, kept);
    refused(*cache, cut, kept < 64 ? "expected what swap_out wrote" : "truncated or too many");
  }
  std::ofstream(directory.file("foreign")) << std::string(1000, 'x');
  refused(*cache, directory.file("foreign"), "something else");
  refused(*cache, directory.file("absent"), "cannot be read: No such file");
  refused(*cache, directory.file(""), "cannot be read");
  KvCacheOptions wider = kSmall;
  wider.dim = 32;
  refused(*make_cache(wider), path,
          "2 layers of 2 heads, keys bfloat16 24, values bfloat16 40, expected 2 layers");
  KvCacheOptions halves = kSmall;
  halves.value_dtype = DType::f16;
  refused(*make_cache(halves), path, "values float16 40");
  KvCacheOptions smaller = kSmall;
  smaller.pages = 1;
  const auto full = make_cache(smaller);
  const Status status = full->swap_in(path, &back);
  EXPECT_EQ(status.code(), StatusCode::out_of_memory);
  EXPECT_EQ(full->table().sequences(), 0);
  EXPECT_FALSE(cache->swap_in(nullptr, 100, &back));
  EXPECT_TRUE(cache->swap_in(path, &back));
}

TEST(KvCacheSwap, StaysWhenItCannotGo) {
  const Directory directory;
  const auto cache = make_cache(kSmall);
  std::mt19937 random(1);
  std::int64_t id;
  PlainSequence plain;
  ASSERT_TRUE(cache->add(&id));
  ASSERT_TRUE(append_tokens(*cache, {id}, {20}, {&plain}, random));
  std::size_t bytes = 0;
  ASSERT_TRUE(cache->swap_bytes(id, &bytes));
  std::vector<std::uint8_t> memory(bytes);
  EXPECT_FALSE(cache->swap_out(id, memory.data(), bytes - 1));
  EXPECT_FALSE(cache->swap_out(id, nullptr, bytes));
  EXPECT_FALSE(cache->swap_out(id, directory.file("no/such/folder")));
  std::filesystem::create_directory(directory.file("folder"));
  EXPECT_FALSE(cache->swap_out(id, directory.file("folder")));
  const std::string pipe = directory.file("pipe"), link = directory.file("link");
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_FALSE(cache->swap_out(id, pipe));  // as it would a device
  ASSERT_EQ(::symlink("nowhere/at/all", link.c_str()), 0);
  EXPECT_FALSE(cache->swap_out(id, link));
  EXPECT_EQ(directory.files(), 3u);  // and nothing is left behind
  EXPECT_FALSE(cache->swap_out(id, "/dev/full/x"));
  EXPECT_EQ(difference(*cache, id, plain), "");
  EXPECT_FALSE(cache->swap_out(id + 1, memory.data(), bytes));
}

TEST(KvCacheErrors, Options) {
  const std::pair<const char*, KvCacheOptions> cases[] = {
      {"layers: got 0", {.layers = 0}},
      {"kv_heads: got -1", {.kv_heads = -1}},
      {"dim: got 577", {.dim = 577}},
      {"dim_v: got 0", {.dim_v = 0}},
      {"page_size: got 20", {.page_size = 20}},
      {"pages: got -5", {.pages = -5}},
      {"key_dtype: got float64", {.key_dtype = DType::f64}},
      {"value_dtype: got bool", {.value_dtype = DType::boolean}},
      {"pages: got 2147483647", {.layers = 2147483647, .kv_heads = 2147483647, .pages = 2147483647}},
  };
  for (const auto& [message, options] : cases) {
    std::unique_ptr<PagedKVCache> cache;
    const Status status = PagedKVCache::create(options, &cache);
    EXPECT_EQ(status.code(), StatusCode::invalid_argument);
    EXPECT_EQ(status.message().find(message), 0u) << status.message();
    EXPECT_EQ(cache, nullptr);
  }
}

TEST(KvCacheErrors, MemoryThatTheSystemDoesNotGrant) {
  std::unique_ptr<PagedKVCache> cache;
  const KvCacheOptions options{.layers = 100000, .kv_heads = 1000, .dim = 512, .dim_v = 512, .pages = 100000};
  const Status status = PagedKVCache::create(options, &cache);
  EXPECT_EQ(status.code(), StatusCode::out_of_memory);
  EXPECT_NE(status.message().find("pages: got 100000, which need"), std::string::npos) << status.message();
}

TEST(KvCacheErrors, AppendAndExtend) {
  const auto cache = make_cache(kSmall);
  std::int64_t id;
  ASSERT_TRUE(cache->add(&id));
  std::vector<std::int64_t> slots(3);
  const std::int64_t three = 3;
  ASSERT_TRUE(cache->extend({&id, 1}, {&three, 1}, slots, serial_executor()));
  std::vector<float> rows(3 * 2 * 40);
  const TensorView key = TensorView::dense(rows.data(), DType::f32, {3, 2, 24});
  const TensorView value = TensorView::dense(rows.data(), DType::f32, {3, 2, 40});
  const auto message = [&](std::int64_t layer, const TensorView& k, const TensorView& v) {
    const Status status = cache->append(layer, k, v, slots, {}, serial_executor());
    return status ? std::string("ok") : status.message();
  };
  EXPECT_EQ(message(1, key, value), "ok");
  EXPECT_EQ(message(2, key, value), "layer: got 2, expected 0 to 1");
  EXPECT_EQ(message(0, key, {}), "value: got nothing, expected a tensor [tokens, kv_heads, dim_v]");
  EXPECT_EQ(message(0, value, value).find("key_pages: got shape [12, 2, 16, 24]"), 0u);
  slots[1] = 12 * 16;
  EXPECT_EQ(message(0, key, value), "slots: got 192 at [1], expected -1 to 191: 12 pages of 16");
}

TEST(KvCacheMemory, TensorsAreAlignedAndApart) {
  for (DType dtype : {DType::bf16, DType::i8}) {
    KvCacheOptions o = kSmall;
    o.dim = 33;
    o.pages = 3;
    o.key_dtype = o.value_dtype = dtype;
    const auto cache = make_cache(o);
    std::vector<std::pair<std::uintptr_t, std::uintptr_t>> spans;
    for (std::int64_t l = 0; l < 2; ++l) {
      const KvLayer layer = cache->layer(l);
      for (const TensorView* t : {&layer.key, &layer.value, &layer.key_scale, &layer.value_scale}) {
        if (!*t) continue;
        const auto begin = reinterpret_cast<std::uintptr_t>(t->data);
        EXPECT_EQ(begin % 64, 0u);
        spans.push_back({begin, begin + static_cast<std::uintptr_t>(t->elements()) * size_of(t->dtype)});
      }
    }
    EXPECT_EQ(spans.size(), dtype == DType::i8 ? 8u : 4u);
    std::sort(spans.begin(), spans.end());
    for (std::size_t i = 1; i < spans.size(); ++i) EXPECT_LE(spans[i - 1].second, spans[i].first);
    EXPECT_LE(spans.back().second - spans.front().first, cache->bytes());
  }
}

}  // namespace
}  // namespace tileformer::test
