// Sequences of one cache in several threads at once, sharing pages: run under ThreadSanitizer in CI.
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <mutex>
#include <thread>

#include "kv_cache_model.h"

namespace tileformer::test {
namespace {

struct Lent {
  std::int64_t id = -1;
  PlainSequence plain;
};

// Sequences from thread to thread: one that shares its pages with the thread that it came from.
class Exchange {
 public:
  void give(Lent lent) {
    const std::lock_guard lock(mutex_);
    waiting_.push_back(std::move(lent));
  }
  bool take(Lent* lent) {
    const std::lock_guard lock(mutex_);
    if (waiting_.empty()) return false;
    *lent = std::move(waiting_.front());
    waiting_.pop_front();
    return true;
  }

 private:
  std::mutex mutex_;
  std::deque<Lent> waiting_;
};

void live(PagedKVCache& cache, std::int64_t shared, const PlainSequence& shared_plain, Exchange& exchange,
          unsigned seed) {
  std::mt19937 random(seed);
  const auto below = [&](int n) { return std::uniform_int_distribution<int>(0, n - 1)(random); };
  const KvCacheOptions& o = cache.options();
  for (int round = 0; round < 100; ++round) {
    Lent held{-1, shared_plain};
    auto& [id, plain] = held;
    if (round % 4 == 0 || !exchange.take(&held)) {
      const std::int64_t prefix = std::min<std::int64_t>(shared_plain.length, 13 + below(30));
      ASSERT_TRUE(cache.fork_prefix(shared, prefix, &id));
      trim_plain(plain, o, prefix);
    }
    for (int step = 0; step < 8; ++step) {
      const Status status = append_tokens(cache, {id}, {below(5) == 0 ? 20 : 1}, {&plain}, random);
      ASSERT_TRUE(status || status.code() == StatusCode::out_of_memory) << status.message();
      if (below(3) == 0) {
        Lent lent{-1, plain};
        ASSERT_TRUE(cache.fork(id, &lent.id));
        exchange.give(std::move(lent));
      }
      if (below(3) == 0) {
        const std::int64_t length = plain.length - std::min<std::int64_t>(plain.length, below(20));
        ASSERT_TRUE(cache.trim(id, length));
        trim_plain(plain, o, length);
      }
      if (below(8) == 0) {
        std::size_t bytes = 0;
        ASSERT_TRUE(cache.swap_bytes(id, &bytes));
        std::vector<std::uint8_t> memory(bytes);
        ASSERT_TRUE(cache.swap_out(id, memory.data(), bytes));
        Status in;
        for (Lent other; !(in = cache.swap_in(memory.data(), bytes, &id));) {
          ASSERT_EQ(in.code(), StatusCode::out_of_memory) << in.message();
          ASSERT_TRUE(!exchange.take(&other) || cache.free(other.id));
          std::this_thread::yield();
        }
      }
    }
    ASSERT_EQ(difference(cache, id, plain), "");
    ASSERT_TRUE(cache.free(id));
  }
}

TEST(KvCacheThreads, SequencesShareAPool) {
  const auto cache = make_cache({.layers = 8,
                                 .kv_heads = 2,
                                 .dim = 16,
                                 .dim_v = 16,
                                 .page_size = 16,
                                 .pages = 40,
                                 .key_dtype = DType::i8,
                                 .value_dtype = DType::bf16});
  poison(*cache);
  std::mt19937 random(9);
  std::int64_t shared;
  PlainSequence plain;
  ASSERT_TRUE(cache->add(&shared));
  ASSERT_TRUE(append_tokens(*cache, {shared}, {39}, {&plain}, random));
  Exchange exchange;
  std::vector<std::thread> threads;
  for (unsigned i = 0; i < 4; ++i) threads.emplace_back([&, i] { live(*cache, shared, plain, exchange, i); });
  for (std::thread& thread : threads) thread.join();
  for (Lent lent; exchange.take(&lent);) {
    EXPECT_EQ(difference(*cache, lent.id, lent.plain), "");
    ASSERT_TRUE(cache->free(lent.id));
  }
  EXPECT_EQ(difference(*cache, shared, plain), "");
  EXPECT_TRUE(cache->table().verify());
  ASSERT_TRUE(cache->free(shared));
  EXPECT_EQ(cache->table().used_pages(), 0);
}

}  // namespace
}  // namespace tileformer::test
