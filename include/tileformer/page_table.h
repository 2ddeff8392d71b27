// Which page of a pool holds which tokens of which sequence. Bookkeeping alone: the keys and values lie in
// pools of pages [pages, kv_heads, page_size, dim] that somebody else owns (kv_cache.h, or any tensors).
//
// Token t of a sequence lies in row t % page_size of the sequence's page t / page_size. A *slot* is a row of
// the pool as one number, page * page_size + row. Sequences that were forked from each other share pages,
// which are counted; a sequence that is about to write into a page that others hold gets a page of its own
// first. Only the last page of a sequence is ever written, so that no sequence needs more than one copy at a
// time, and no page ever has to move: there is nothing to defragment.
//
//   used_pages() + free_pages() == pages(), always
//
// Every call is safe from any thread. Those that fail change nothing.
//
// Sources: Kwon et al., Efficient Memory Management for LLM Serving with PagedAttention (2023).
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <unordered_map>
#include <vector>

#include "tileformer/status.h"

namespace tileformer {

// The first `rows` rows of page `from`, of every head, belong into page `to` too.
struct PageCopy {
  std::int64_t from = 0, to = 0, rows = 0;
};

class PageTable {
 public:
  // pages 0 .. 2^31 - 1, page_size a multiple of 16 from 16 to 256.
  static Status create(std::int64_t pages, std::int64_t page_size, std::unique_ptr<PageTable>* table);

  std::int64_t pages() const { return pages_; }
  std::int64_t page_size() const { return page_size_; }
  std::int64_t used_pages() const;
  std::int64_t free_pages() const;
  std::int64_t sequences() const;

  // An empty sequence. Ids count up from 0 and are never used again: a stale one is an error.
  Status add(std::int64_t* id);
  // A sequence with the same tokens, in the same pages.
  Status fork(std::int64_t id, std::int64_t* copy);
  // The same with the first `length` tokens alone.
  Status fork_prefix(std::int64_t id, std::int64_t length, std::int64_t* copy);

  // Room for tokens[i] more tokens of sequence ids[i], for all of them or, if there are too few pages
  // (out_of_memory), for none. slots [sum of tokens] receives where they belong, sequence after sequence. No
  // id may come twice. `copies` are to be carried out before anything is written into the slots, and before
  // any thread calls extend again: it might hand out a page that is still to be read.
  Status extend(std::span<const std::int64_t> ids, std::span<const std::int64_t> tokens,
                std::span<std::int64_t> slots, std::vector<PageCopy>* copies);
  // How many free pages that would take.
  Status pages_to_extend(std::span<const std::int64_t> ids, std::span<const std::int64_t> tokens,
                         std::int64_t* pages) const;

  // Forgets the tokens from `length` on (a draft that was refused), and the pages that held nothing else.
  Status trim(std::int64_t id, std::int64_t length);
  Status free(std::int64_t id);

  Status length(std::int64_t id, std::int64_t* length) const;
  // Pages of the longest of the sequences: the least number of columns for block_table.
  Status block_columns(std::span<const std::int64_t> ids, std::int64_t* columns) const;
  // Rows of AttentionArgs::block_table, dense [ids, columns], -1 behind the last page, and of key_lengths
  // [ids] (null: not wanted).
  Status block_table(std::span<const std::int64_t> ids, std::int64_t columns, std::int32_t* blocks,
                     std::int32_t* lengths) const;

  // Looks through all of it for a page that is lost, held twice or counted wrongly. For tests.
  Status verify() const;

 private:
  struct Sequence {
    std::int64_t length = 0;
    std::vector<std::int32_t> pages;  // those that hold its `length` tokens, no more
  };
  using Sequences = std::unordered_map<std::int64_t, Sequence>;

  PageTable(std::int64_t pages, std::int64_t page_size);
  Status find(std::int64_t id, const Sequence** sequence) const;
  Status find_all(std::span<const std::int64_t> ids, std::vector<const Sequence*>* found) const;
  Status count_pages(std::span<const std::int64_t> ids, std::span<const std::int64_t> tokens,
                     std::int64_t* pages) const;
  Status add_locked(const Sequence& source, std::int64_t length, std::int64_t* id);
  bool writes_shared_page(const Sequence& sequence, std::int64_t tokens) const;
  std::int64_t free_locked() const;
  std::int32_t take_page();
  void drop_page(std::int32_t page);

  const std::int64_t pages_, page_size_;
  mutable std::mutex mutex_;
  std::int64_t next_id_ = 0;
  Sequences sequences_;
  // Sequences that hold the page, for every page that was ever used.
  std::vector<std::int32_t> holders_;
  // Of those, the pages that are free now. The one that was freed last goes first: it is the likeliest to be
  // in a cache. Pages that were never used go last: they stay memory that the system has not given yet.
  std::vector<std::int32_t> free_;
};

}  // namespace tileformer
