// The page table against a model that has no pages: every sequence a list of tokens. A pool of numbers stands
// for the keys: if a token were written into a page that others read, or a copy forgotten, a number would be
// off.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>

#include "tileformer/page_table.h"

namespace tileformer::test {
namespace {

using Ids = std::vector<std::int64_t>;

std::unique_ptr<PageTable> make_table(std::int64_t pages, std::int64_t page_size = 16) {
  std::unique_ptr<PageTable> table;
  EXPECT_TRUE(PageTable::create(pages, page_size, &table));
  return table;
}

class Model {
 public:
  Model(std::int64_t pages, std::int64_t page_size)
      : table_(make_table(pages, page_size)), rows_(static_cast<std::size_t>(pages * page_size), -1) {}

  PageTable& table() { return *table_; }
  const std::map<std::int64_t, Ids>& sequences() const { return sequences_; }

  void add() {
    std::int64_t id = -1;
    ASSERT_TRUE(table_->add(&id));
    take_id(id, {});
  }

  void fork(std::int64_t id, std::size_t length) {
    const Ids& source = sequences_.at(id);
    std::int64_t copy = -1;
    ASSERT_TRUE(length == source.size() ? table_->fork(id, &copy) : table_->fork_prefix(id, length, &copy));
    take_id(copy, Ids(source.begin(), source.begin() + static_cast<std::ptrdiff_t>(length)));
  }

  // False: the pool was full.
  bool extend(const Ids& ids, const Ids& tokens) {
    std::int64_t needed = 0, total = 0;
    for (std::int64_t n : tokens) total += n;
    EXPECT_TRUE(table_->pages_to_extend(ids, tokens, &needed));
    const std::int64_t used = table_->used_pages();
    Ids slots(static_cast<std::size_t>(total), -7);
    std::vector<PageCopy> copies;
    const Status status = table_->extend(ids, tokens, slots, &copies);
    if (needed > table_->pages() - used) {
      EXPECT_EQ(status.code(), StatusCode::out_of_memory);
      EXPECT_EQ(table_->used_pages(), used);
      EXPECT_TRUE(std::all_of(slots.begin(), slots.end(), [](auto s) { return s == -7; }));
      return false;
    }
    EXPECT_TRUE(status) << status.message();
    EXPECT_EQ(table_->used_pages(), used + needed);
    const std::int64_t page_size = table_->page_size();
    for (const PageCopy& copy : copies)
      std::copy_n(rows_.begin() + copy.from * page_size, copy.rows, rows_.begin() + copy.to * page_size);
    auto slot = slots.begin();
    for (std::size_t i = 0; i < ids.size(); ++i) {
      for (std::int64_t t = 0; t < tokens[i]; ++t) {
        rows_.at(static_cast<std::size_t>(*slot++)) = next_token_;
        sequences_.at(ids[i]).push_back(next_token_++);
      }
    }
    return true;
  }

  void trim(std::int64_t id, std::size_t length) {
    ASSERT_TRUE(table_->trim(id, static_cast<std::int64_t>(length)));
    sequences_.at(id).resize(length);
  }

  void free(std::int64_t id) {
    ASSERT_TRUE(table_->free(id));
    sequences_.erase(id);
  }

  // Every token of every sequence is where the table says, and the counts are right.
  void check() const {
    ASSERT_TRUE(table_->verify()) << table_->verify().message();
    Ids ids;
    for (const auto& [id, tokens] : sequences_) ids.push_back(id);
    std::int64_t columns = -1;
    ASSERT_TRUE(table_->block_columns(ids, &columns));
    columns += 2;
    std::vector<std::int32_t> blocks(ids.size() * static_cast<std::size_t>(columns)), lengths(ids.size());
    ASSERT_TRUE(table_->block_table(ids, columns, blocks.data(), lengths.data()));
    std::set<std::int32_t> used;
    for (std::size_t i = 0; i < ids.size(); ++i) {
      const std::int32_t* row = &blocks[i * static_cast<std::size_t>(columns)];
      const Ids& tokens = sequences_.at(ids[i]);
      ASSERT_EQ(lengths[i], static_cast<std::int64_t>(tokens.size()));
      const std::int64_t page_size = table_->page_size();
      for (std::int64_t t = 0; t < lengths[i]; ++t)
        ASSERT_EQ(rows_.at(static_cast<std::size_t>(row[t / page_size] * page_size + t % page_size)),
                  tokens[t]);
      const std::int64_t pages = (lengths[i] + page_size - 1) / page_size;
      for (std::int64_t b = 0; b < columns; ++b) {
        ASSERT_EQ(row[b] == -1, b >= pages);
        if (b < pages) used.insert(row[b]);
      }
    }
    ASSERT_EQ(table_->used_pages(), static_cast<std::int64_t>(used.size()));
    ASSERT_EQ(table_->used_pages() + table_->free_pages(), table_->pages());
    ASSERT_EQ(table_->sequences(), static_cast<std::int64_t>(ids.size()));
  }

 private:
  void take_id(std::int64_t id, Ids tokens) {
    ASSERT_TRUE(ever_.insert(id).second) << "id " << id << " came twice";
    sequences_[id] = std::move(tokens);
  }

  std::unique_ptr<PageTable> table_;
  Ids rows_;
  std::map<std::int64_t, Ids> sequences_;
  std::set<std::int64_t> ever_;
  std::int64_t next_token_ = 0;
};

TEST(PageTable, RandomOperations) {
  int full = 0;
  for (unsigned seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    const auto below = [&](std::size_t n) {
      return std::uniform_int_distribution<std::size_t>(0, n - 1)(random);
    };
    Model model(static_cast<std::int64_t>(1 + below(40)), seed % 3 == 0 ? 32 : 16);
    for (int step = 0; step < 400; ++step) {
      const auto any = [&] {
        return *std::next(model.sequences().begin(),
                          static_cast<std::ptrdiff_t>(below(model.sequences().size())));
      };
      const std::size_t what = below(10);
      if (model.sequences().empty() || what == 0) {
        model.add();
      } else if (what == 1 || what == 2) {
        const auto [id, tokens] = any();
        model.fork(id, what == 1 ? tokens.size() : below(tokens.size() + 1));
      } else if (what == 3) {
        const auto [id, tokens] = any();
        model.trim(id, tokens.size() - std::min(tokens.size(), below(20)));
      } else if (what == 4) {
        model.free(any().first);
      } else {
        Ids ids, tokens;
        for (const auto& [id, held] : model.sequences()) {
          if (below(3) != 0) continue;
          ids.push_back(id);
          tokens.push_back(static_cast<std::int64_t>(below(4) == 0 ? below(50) : below(3)));
        }
        std::shuffle(ids.begin(), ids.end(), random);
        if (!model.extend(ids, tokens)) {
          ++full;
          model.free(any().first);
        }
      }
      model.check();
      if (HasFatalFailure()) return;
    }
    while (!model.sequences().empty()) model.free(model.sequences().begin()->first);
    EXPECT_EQ(model.table().used_pages(), 0);
  }
  EXPECT_GT(full, 100);  // pools did run full
}

// All lengths of a sequence around its page boundaries, forked and grown on both sides in both orders.
TEST(PageTable, ForksAtEveryLength) {
  for (std::int64_t length = 0; length <= 49; ++length) {
    for (std::int64_t more : {0, 1, 15, 16, 17}) {
      for (bool together : {false, true}) {
        SCOPED_TRACE(std::to_string(length) + " + " + std::to_string(more));
        Model model(12, 16);
        model.add();
        ASSERT_TRUE(model.extend({0}, {length}));
        model.fork(0, static_cast<std::size_t>(length));
        model.fork(1, static_cast<std::size_t>(length));
        if (together) {
          ASSERT_TRUE(model.extend({2, 0, 1}, {more, more, more}));
        } else {
          ASSERT_TRUE(model.extend({1}, {more}));
          ASSERT_TRUE(model.extend({0}, {more}));
          ASSERT_TRUE(model.extend({2}, {more}));
        }
        model.check();
        model.trim(1, static_cast<std::size_t>(length / 2));
        ASSERT_TRUE(model.extend({1}, {3}));
        model.check();
      }
    }
  }
}

// Three sequences share a partly filled page: two copies are enough, the last one keeps the page.
TEST(PageTable, TheLastOfTheHoldersKeepsThePage) {
  Model model(3, 16);
  model.add();
  ASSERT_TRUE(model.extend({0}, {5}));
  model.fork(0, 5);
  model.fork(0, 5);
  ASSERT_TRUE(model.extend({0, 1, 2}, {1, 1, 1}));
  EXPECT_EQ(model.table().free_pages(), 0);
  model.check();
}

TEST(PageTable, AFullPoolSaysHowFull) {
  Model model(4, 16);
  model.add();
  model.add();
  ASSERT_TRUE(model.extend({0}, {40}));
  Ids slots(40);
  std::vector<PageCopy> copies;
  const Ids ids{0, 1}, tokens{20, 20};
  const Status status = model.table().extend(ids, tokens, slots, &copies);
  EXPECT_EQ(status.code(), StatusCode::out_of_memory);
  EXPECT_EQ(status.message(),
            "tokens: got 40, which need 3 pages, expected at most 1: 3 of 4 pages are used");
  model.check();
}

TEST(PageTable, PagesOfOneSequenceAreTheFirstAndReusedLastFirst) {
  Model model(8, 16);
  model.add();
  ASSERT_TRUE(model.extend({0}, {48}));
  std::int32_t blocks[3];
  const Ids ids{0};
  ASSERT_TRUE(model.table().block_table(ids, 3, blocks, nullptr));
  EXPECT_EQ(std::vector<std::int32_t>(blocks, blocks + 3), (std::vector<std::int32_t>{0, 1, 2}));
  model.trim(0, 16);
  ASSERT_TRUE(model.extend({0}, {1}));
  ASSERT_TRUE(model.table().block_table(ids, 3, blocks, nullptr));
  EXPECT_EQ(blocks[1], 1);
}

TEST(PageTable, RefusesWrongArguments) {
  std::unique_ptr<PageTable> table;
  const auto message = [](const Status& s) { return s ? std::string("ok") : s.message(); };
  EXPECT_EQ(message(PageTable::create(-1, 16, &table)), "pages: got -1, expected 0 to 2147483647");
  for (std::int64_t size : {0, -16, 1, 15, 17, 24, 272, 512})
    EXPECT_EQ(message(PageTable::create(4, size, &table)),
              "page_size: got " + std::to_string(size) + ", expected a multiple of 16 from 16 to 256");
  EXPECT_EQ(table, nullptr);

  table = make_table(4);
  std::int64_t id = -1, out = -1;
  ASSERT_TRUE(table->add(&id));
  ASSERT_TRUE(table->free(id));
  const std::string stale = "id: got 0, expected the id of a sequence that has not been freed";
  EXPECT_EQ(message(table->free(id)), stale);
  EXPECT_EQ(message(table->trim(id, 0)), stale);
  EXPECT_EQ(message(table->fork(id, &out)), stale);
  EXPECT_EQ(message(table->fork_prefix(id, 0, &out)), stale);
  EXPECT_EQ(message(table->length(id, &out)), stale);
  ASSERT_TRUE(table->add(&id));
  Ids slots(20);
  std::vector<PageCopy> copies;
  const auto extend = [&](const Ids& ids, const Ids& tokens, std::size_t room) {
    return message(table->extend(ids, tokens, std::span(slots).first(room), &copies));
  };
  EXPECT_EQ(extend({id, 0}, {1, 1}, 2),
            "ids: got 0 at [1], expected the id of a sequence that has not been freed");
  EXPECT_EQ(extend({id, id}, {1, 1}, 2), "ids: got 1 twice, expected each sequence once");
  EXPECT_EQ(extend({id}, {1, 1}, 2), "tokens: got 2 numbers, expected 1, one for each sequence");
  EXPECT_EQ(extend({id}, {-1}, 0), "tokens: got -1 at [0], expected 0 to 2147418111");
  EXPECT_EQ(extend({id}, {3}, 2), "slots: got 2 elements, expected 3, one for each new token");
  EXPECT_EQ(extend({id}, {20}, 20), "ok");
  EXPECT_EQ(message(table->trim(id, 21)), "length: got 21, expected 0 to 20");
  EXPECT_EQ(message(table->trim(id, -1)), "length: got -1, expected 0 to 20");
  EXPECT_EQ(message(table->fork_prefix(id, 21, &out)), "length: got 21, expected 0 to 20");
  std::int32_t block;
  EXPECT_EQ(message(table->block_table(Ids{id}, 1, &block, nullptr)),
            "columns: got 1, expected at least 2, the pages of sequence 1");
  EXPECT_EQ(message(table->block_columns(Ids{7}, &out)),
            "ids: got 7 at [0], expected the id of a sequence that has not been freed");
  EXPECT_TRUE(table->verify());
}

TEST(PageTable, TheLargestPoolCostsNothing) {
  EXPECT_EQ(make_table(2147483647, 256)->free_pages(), 2147483647);
}

TEST(PageTable, NoPagesAndNothingToDo) {
  const auto table = make_table(0, 256);
  std::int64_t id = -1, columns = -1;
  ASSERT_TRUE(table->add(&id));
  std::vector<PageCopy> copies;
  EXPECT_TRUE(table->extend(Ids{id}, Ids{0}, {}, &copies));
  EXPECT_TRUE(table->extend({}, {}, {}, &copies));
  EXPECT_TRUE(table->block_columns(Ids{id}, &columns));
  EXPECT_EQ(columns, 0);
  EXPECT_EQ(table->free_pages(), 0);
}

}  // namespace
}  // namespace tileformer::test
