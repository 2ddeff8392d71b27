// A cache under everything at once, for as long as one likes: two threads append, fork, trim, free, swap and
// decode, in a pool that is nearly full most of the time. Each sequence also exists as a plain list of rows;
// attention over its pages must be attention over the list, and no page may get lost.
//
//   kv_cache_soak [--seconds N] [--cases N] [--seed N]
//
// TILEFORMER_NIGHTLY_SECONDS in the environment takes the place of --seconds.
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <set>
#include <thread>

#include "fuzz.h"
#include "kv_cache_model.h"
#include "tileformer/attention.h"

namespace tileformer::test {
namespace {

constexpr int kThreads = 2, kRounds = 4, kStepsPerRound = 40;
constexpr std::size_t kMostSequences = 6;  // of a thread

// Rethrown as the result of the whole: gtest's assertions are for its own programs.
struct Failure {
  std::string message;
};
void require(bool holds, const std::string& message) {
  if (!holds) throw Failure{message};
}
void require(const Status& status) { require(status.is_ok(), status.message()); }

struct Held {
  std::int64_t id = -1;  // -1: swapped out
  PlainSequence plain;
  std::vector<std::uint8_t> memory;
  std::string path;
};

class Worker {
 public:
  Worker(PagedKVCache& cache, std::int64_t group, std::uint64_t seed)
      : cache_(cache), group_(group), random_(seed), name_(std::to_string(seed)) {}

  const std::vector<Held>& held() const { return held_; }

  void run(std::int64_t shared, const PlainSequence& shared_plain) try {
    for (int step = 0; step < kStepsPerRound; ++step) one_step(shared, shared_plain);
  } catch (const Failure& f) {
    failure = f.message;
  }

  void free_all() {
    for (Held& h : held_) {
      if (h.id >= 0) require(cache_.free(h.id));
      if (!h.path.empty()) std::filesystem::remove(h.path);
    }
    held_.clear();
  }

  std::string failure;

 private:
  int below(std::int64_t n) {
    return static_cast<int>(std::uniform_int_distribution<std::int64_t>(0, n - 1)(random_));
  }

  Held* any_here() {
    std::vector<Held*> here;
    for (Held& h : held_)
      if (h.id >= 0) here.push_back(&h);
    return here.empty() ? nullptr : here[static_cast<std::size_t>(below(std::int64_t(here.size())))];
  }

  void one_step(std::int64_t shared, const PlainSequence& shared_plain) {
    Held* const one = any_here();
    const int what = below(20);
    if (one == nullptr || what == 0) {
      if (held_.size() < kMostSequences) fork(shared, shared_plain);
      swap_in();
    } else if (what < 9) {
      append();
    } else if (what < 11) {
      if (held_.size() < kMostSequences) fork(one->id, PlainSequence(one->plain));
    } else if (what < 13) {
      const std::int64_t length = one->plain.length - std::min<std::int64_t>(one->plain.length, below(24));
      require(cache_.trim(one->id, length));
      trim_plain(one->plain, cache_.options(), length);
    } else if (what == 13) {
      drop(*one);
    } else if (what == 14) {
      swap_out(*one);
    } else if (what == 15) {
      swap_in();
    } else {
      decode();
    }
  }

  void fork(std::int64_t id, const PlainSequence& source) {
    Held made;
    const std::int64_t length = below(2) == 0 ? source.length : below(source.length + 1);
    require(length == source.length ? cache_.fork(id, &made.id) : cache_.fork_prefix(id, length, &made.id));
    made.plain = source;
    trim_plain(made.plain, cache_.options(), length);
    held_.push_back(std::move(made));
  }

  void append() {
    std::vector<std::int64_t> ids, tokens;
    std::vector<PlainSequence*> plain;
    for (Held& h : held_) {
      if (h.id < 0 || below(2) == 0) continue;
      ids.push_back(h.id);
      tokens.push_back(below(4) == 0 ? below(60) : 1);
      plain.push_back(&h.plain);
    }
    const Status status = append_tokens(cache_, ids, tokens, plain, random_, *executor_);
    if (status.code() != StatusCode::out_of_memory) return require(status);
    Held* const victim = any_here();
    if (below(2) == 0)
      swap_out(*victim);
    else
      drop(*victim);
  }

  void drop(Held& h) {
    require(cache_.free(h.id));
    held_.erase(held_.begin() + (&h - held_.data()));
  }

  void swap_out(Held& h) {
    if (below(3) == 0) {
      h.path = (std::filesystem::temp_directory_path() / ("tileformer-soak-" + std::to_string(getpid()) +
                                                          "-" + name_ + "-" + std::to_string(files_++)))
                   .string();
      require(cache_.swap_out(h.id, h.path));
    } else {
      std::size_t bytes = 0;
      require(cache_.swap_bytes(h.id, &bytes));
      h.memory.resize(bytes);
      require(cache_.swap_out(h.id, h.memory.data(), bytes));
    }
    h.id = -1;
  }

  void swap_in() {
    for (Held& h : held_) {
      if (h.id >= 0) continue;
      const Status status = h.path.empty() ? cache_.swap_in(h.memory.data(), h.memory.size(), &h.id)
                                           : cache_.swap_in(h.path, &h.id);
      if (status.code() == StatusCode::out_of_memory) return;
      require(status);
      if (!h.path.empty()) std::filesystem::remove(h.path);
      h.path.clear();
      const std::string off = difference(cache_, h.id, h.plain);
      require(off.empty(), "after a swap: " + off);
    }
  }

  // A few queries, or enough for the kernel of many, over some sequences at once.
  void decode() {
    std::vector<const Held*> batch;
    for (const Held& h : held_)
      if (h.id >= 0 && below(3) != 0) batch.push_back(&h);
    const KvCacheOptions& o = cache_.options();
    const auto sequences = static_cast<std::int64_t>(batch.size());
    const std::int64_t heads = o.kv_heads * group_, queries = below(8) == 0 ? 17 + below(20) : 1 + below(3);
    const auto l = below(o.layers);
    const DType dtype = std::array{DType::f32, DType::f32, DType::f16, DType::bf16}[below(4)];

    std::vector<std::int64_t> ids;
    for (const Held* h : batch) ids.push_back(h->id);
    std::int64_t columns = 0;
    require(cache_.table().block_columns(ids, &columns));
    std::vector<std::int32_t> blocks(ids.size() * static_cast<std::size_t>(columns)), lengths(ids.size());
    require(cache_.table().block_table(ids, columns, blocks.data(), lengths.data()));

    const auto elements = static_cast<std::size_t>(sequences * heads * queries);
    std::vector<std::uint8_t> query(elements * static_cast<std::size_t>(o.dim) * size_of(dtype));
    std::vector<std::uint8_t> out(elements * static_cast<std::size_t>(o.dim_v) * size_of(dtype));
    AttentionArgs args;
    args.query = TensorView::dense(query.data(), dtype, {sequences, heads, queries, o.dim});
    args.out = TensorView::dense(out.data(), dtype, {sequences, heads, queries, o.dim_v});
    std::normal_distribution<double> normal;
    for_each_index(args.query, [&](const Index& at) { set(args.query, at, 2 * normal(random_)); });
    const KvLayer layer = cache_.layer(l);
    args.key = layer.key;
    args.value = layer.value;
    args.key_scale = layer.key_scale;
    args.value_scale = layer.value_scale;
    args.block_table = TensorView::dense(blocks.data(), DType::i32, {sequences, columns});
    args.key_lengths = TensorView::dense(lengths.data(), DType::i32, {sequences});
    args.causal = Causal::bottom_right;
    require(attention_forward(args, *executor_));
    for (std::int64_t n = 0; n < sequences; ++n)
      compare(args, n, l, batch[static_cast<std::size_t>(n)]->plain);
  }

  void compare(const AttentionArgs& paged, std::int64_t n, std::int64_t l, const PlainSequence& plain) {
    const KvCacheOptions& o = cache_.options();
    const std::int64_t heads = paged.query.shape[1], queries = paged.query.shape[2];
    std::vector<float> query(static_cast<std::size_t>(heads * queries * o.dim));
    std::vector<float> out(static_cast<std::size_t>(heads * queries * o.dim_v));
    AttentionArgs args;
    args.query = TensorView::dense(query.data(), DType::f32, {1, heads, queries, o.dim});
    args.out = TensorView::dense(out.data(), DType::f32, {1, heads, queries, o.dim_v});
    for_each_index(args.query, [&](const Index& at) {
      set(args.query, at, get(paged.query, {n, at[1], at[2], at[3]}));
    });
    static const PlainSequence::Layer kEmpty;
    const PlainSequence::Layer& rows =
        plain.layers.empty() ? kEmpty : plain.layers[static_cast<std::size_t>(l)];
    const auto contiguous = [&](const std::vector<float>& x, std::int64_t dim) {
      return TensorView::dense(x.data(), DType::f32, {1, plain.length, o.kv_heads, dim}).transposed(1, 2);
    };
    args.key = contiguous(rows.key, o.dim);
    args.value = contiguous(rows.value, o.dim_v);
    args.causal = Causal::bottom_right;
    require(attention_reference(args));
    // The output is a mean of values of about 1; probabilities are rounded to the dtype on the way.
    const double tolerance = paged.query.dtype == DType::bf16  ? 0.05
                             : paged.query.dtype == DType::f16 ? 5e-3
                                                               : 5e-4;
    for_each_index(args.out, [&](const Index& at) {
      const double got = get(paged.out, {n, at[1], at[2], at[3]}), want = get(args.out, at);
      require(std::abs(got - want) <= tolerance,
              std::to_string(queries) + " " + name_of(paged.query.dtype) + " queries, " +
                  std::to_string(heads) + " heads on " + std::to_string(o.kv_heads) + ", keys " +
                  name_of(o.key_dtype) + " " + std::to_string(o.dim) + ", values " + name_of(o.value_dtype) +
                  " " + std::to_string(o.dim_v) + ", pages of " + std::to_string(o.page_size) + ", " +
                  std::to_string(plain.length) + " tokens: got " + std::to_string(got) + ", not " +
                  std::to_string(want));
    });
  }

  PagedKVCache& cache_;
  std::int64_t group_;
  std::mt19937_64 random_;
  std::string name_;
  int files_ = 0;
  std::vector<Held> held_;
  std::unique_ptr<Executor> executor_ = make_thread_pool(2);
};

// NaN into every row that no sequence holds.
void poison_stale(const PagedKVCache& cache, const std::vector<std::int64_t>& ids) {
  const KvCacheOptions& o = cache.options();
  std::set<std::int64_t> live;
  for (std::int64_t id : ids) {
    std::int64_t columns = 0;
    std::int32_t length = 0;
    require(cache.table().block_columns({&id, 1}, &columns));
    std::vector<std::int32_t> blocks(static_cast<std::size_t>(columns));
    require(cache.table().block_table({&id, 1}, columns, blocks.data(), &length));
    for (std::int64_t t = 0; t < length; ++t)
      live.insert(blocks[static_cast<std::size_t>(t / o.page_size)] * o.page_size + t % o.page_size);
  }
  for (std::int64_t l = 0; l < o.layers; ++l) {
    const KvLayer layer = cache.layer(l);
    for (const TensorView* t : {&layer.key, &layer.value, &layer.key_scale, &layer.value_scale}) {
      if (!*t) continue;
      const std::size_t row = static_cast<std::size_t>(t->stride[2]) * size_of(t->dtype);
      auto* const base = static_cast<std::uint8_t*>(t->data);
      for (std::int64_t r = 0; r < o.pages * o.kv_heads * o.page_size; ++r) {
        const std::int64_t page = r / (o.kv_heads * o.page_size);
        if (live.count(page * o.page_size + r % o.page_size) == 0)
          std::memset(base + static_cast<std::size_t>(r) * row, 0xFF, row);
      }
    }
  }
}

void check_whole(const PagedKVCache& cache, std::int64_t shared,
                 const std::vector<std::unique_ptr<Worker>>& workers) {
  require(cache.table().verify());
  require(cache.table().used_pages() + cache.table().free_pages() == cache.options().pages,
          "used + free != pages");
  std::vector<std::int64_t> ids{shared};
  for (const auto& worker : workers) {
    require(worker->failure.empty(), worker->failure);
    for (const Held& h : worker->held()) {
      if (h.id < 0) continue;
      ids.push_back(h.id);
      const std::string off = difference(cache, h.id, h.plain);
      require(off.empty(), off);
    }
  }
  poison_stale(cache, ids);
}

void one_cache(std::uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto one_of = [&](auto... values) {
    const std::array all{values...};
    return all[std::uniform_int_distribution<std::size_t>(0, all.size() - 1)(random)];
  };
  KvCacheOptions o;
  o.layers = one_of(1, 2);
  o.kv_heads = one_of(1, 2, 3);
  o.dim = one_of(16, 24, 64, 80, 128);
  o.dim_v = one_of(o.dim, o.dim, std::int64_t{40});
  o.page_size = one_of(16, 16, 32, 48, 64);
  o.pages = one_of(400, 600, 900) / o.page_size;
  o.key_dtype = one_of(DType::bf16, DType::f16, DType::f32, DType::i8, DType::f8_e4m3, DType::f8_e5m2);
  o.value_dtype = one_of(o.key_dtype, DType::bf16, DType::i8, DType::f8_e4m3);
  const auto cache = make_cache(o);
  poison(*cache);
  std::int64_t shared = -1;
  PlainSequence plain;
  require(cache->add(&shared));
  require(append_tokens(*cache, {shared}, {one_of(0, 16, 37, 70)}, {&plain}, random));
  std::vector<std::unique_ptr<Worker>> workers;
  for (std::uint64_t i = 0; i < kThreads; ++i)
    workers.push_back(std::make_unique<Worker>(*cache, one_of(1, 2, 4), seed * kThreads + i));
  for (int round = 0; round < kRounds; ++round) {
    std::vector<std::thread> threads;
    for (const auto& worker : workers) threads.emplace_back([&] { worker->run(shared, plain); });
    for (std::thread& thread : threads) thread.join();
    check_whole(*cache, shared, workers);
  }
  for (const auto& worker : workers) worker->free_all();
  const std::string off = difference(*cache, shared, plain);
  require(off.empty(), "shared prefix: " + off);
  require(cache->free(shared));
  require(cache->table().used_pages() == 0, "pages are lost");
}

std::string failure_of(std::uint64_t seed) try {
  one_cache(seed);
  return "";
} catch (const Failure& f) {
  return f.message;
}

}  // namespace
}  // namespace tileformer::test

int main(int argc, char** argv) {
  std::vector<char*> arguments(argv, argv + argc);
  std::string option = "--seconds";
  if (char* const seconds = std::getenv("TILEFORMER_NIGHTLY_SECONDS")) {
    arguments.push_back(option.data());
    arguments.push_back(seconds);
  }
  return tileformer::test::fuzz_main(static_cast<int>(arguments.size()), arguments.data(),
                                     tileformer::test::failure_of);
}
