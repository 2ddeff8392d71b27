#include "tileformer/page_table.h"

#include <algorithm>
#include <string>

#include "base/check_view.h"
#include "ops/kv_cache/limits.h"

namespace tileformer {

using kv_cache::kMaxSequenceLength;

namespace {

std::int64_t pages_of(std::int64_t tokens, std::int64_t page_size) {
  return (tokens + page_size - 1) / page_size;
}

Status unknown(const char* argument, std::int64_t id, const std::string& where = "") {
  return wrong(argument, std::to_string(id) + where, "the id of a sequence that has not been freed");
}

Status check_tokens(std::span<const std::int64_t> ids, std::span<const std::int64_t> tokens) {
  if (tokens.size() != ids.size())
    return wrong("tokens", std::to_string(tokens.size()) + " numbers",
                 std::to_string(ids.size()) + ", one for each sequence");
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    if (tokens[i] < 0 || tokens[i] > kMaxSequenceLength)
      return wrong("tokens", std::to_string(tokens[i]) + " at [" + std::to_string(i) + "]",
                   "0 to " + std::to_string(kMaxSequenceLength));
  }
  std::vector<std::int64_t> sorted(ids.begin(), ids.end());
  std::sort(sorted.begin(), sorted.end());
  const auto twice = std::adjacent_find(sorted.begin(), sorted.end());
  if (twice != sorted.end()) return wrong("ids", std::to_string(*twice) + " twice", "each sequence once");
  return Status::ok();
}

}  // namespace

Status PageTable::create(std::int64_t pages, std::int64_t page_size, std::unique_ptr<PageTable>* table) {
  if (Status s = kv_cache::check_pool(pages, page_size); !s) return s;
  table->reset(new PageTable(pages, page_size));
  return Status::ok();
}

PageTable::PageTable(std::int64_t pages, std::int64_t page_size) : pages_(pages), page_size_(page_size) {}

std::int64_t PageTable::free_locked() const {
  return pages_ - static_cast<std::int64_t>(holders_.size()) + static_cast<std::int64_t>(free_.size());
}
std::int64_t PageTable::free_pages() const {
  const std::lock_guard lock(mutex_);
  return free_locked();
}
std::int64_t PageTable::used_pages() const { return pages_ - free_pages(); }
std::int64_t PageTable::sequences() const {
  const std::lock_guard lock(mutex_);
  return static_cast<std::int64_t>(sequences_.size());
}

Status PageTable::find(std::int64_t id, const Sequence** sequence) const {
  const auto found = sequences_.find(id);
  if (found == sequences_.end()) return unknown("id", id);
  *sequence = &found->second;
  return Status::ok();
}

Status PageTable::find_all(std::span<const std::int64_t> ids, std::vector<const Sequence*>* found) const {
  found->clear();
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const auto at = sequences_.find(ids[i]);
    if (at == sequences_.end()) return unknown("ids", ids[i], " at [" + std::to_string(i) + "]");
    found->push_back(&at->second);
  }
  return Status::ok();
}

std::int32_t PageTable::take_page() {
  if (free_.empty()) {
    holders_.push_back(1);
    return static_cast<std::int32_t>(holders_.size() - 1);
  }
  const std::int32_t page = free_.back();
  free_.pop_back();
  holders_[static_cast<std::size_t>(page)] = 1;
  return page;
}

void PageTable::drop_page(std::int32_t page) {
  if (--holders_[static_cast<std::size_t>(page)] == 0) free_.push_back(page);
}

Status PageTable::add_locked(const Sequence& source, std::int64_t length, std::int64_t* id) {
  Sequence sequence;
  sequence.length = length;
  sequence.pages.assign(source.pages.begin(), source.pages.begin() + pages_of(length, page_size_));
  for (std::int32_t page : sequence.pages) ++holders_[static_cast<std::size_t>(page)];
  sequences_.emplace(next_id_, std::move(sequence));
  *id = next_id_++;
  return Status::ok();
}

Status PageTable::add(std::int64_t* id) {
  const std::lock_guard lock(mutex_);
  return add_locked({}, 0, id);
}

Status PageTable::fork(std::int64_t id, std::int64_t* copy) {
  const std::lock_guard lock(mutex_);
  const Sequence* source = nullptr;
  if (Status s = find(id, &source); !s) return s;
  return add_locked(*source, source->length, copy);
}

Status PageTable::fork_prefix(std::int64_t id, std::int64_t length, std::int64_t* copy) {
  const std::lock_guard lock(mutex_);
  const Sequence* source = nullptr;
  if (Status s = find(id, &source); !s) return s;
  if (length < 0 || length > source->length)
    return wrong("length", std::to_string(length), "0 to " + std::to_string(source->length));
  return add_locked(*source, length, copy);
}

// Whether the last page has rows left, is to be written, and has other holders.
bool PageTable::writes_shared_page(const Sequence& sequence, std::int64_t tokens) const {
  return tokens > 0 && sequence.length % page_size_ != 0 &&
         holders_[static_cast<std::size_t>(sequence.pages.back())] > 1;
}

// What extend will take, going through the sequences in its order: of those that share a last page, the last
// one to be extended keeps it if nobody else holds it.
Status PageTable::count_pages(std::span<const std::int64_t> ids, std::span<const std::int64_t> tokens,
                              std::int64_t* pages) const {
  if (Status s = check_tokens(ids, tokens); !s) return s;
  std::vector<const Sequence*> found;
  if (Status s = find_all(ids, &found); !s) return s;
  *pages = 0;
  std::unordered_map<std::int32_t, std::int32_t> left;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const Sequence& sequence = *found[i];
    const std::int64_t length = sequence.length + tokens[i];
    if (length > kMaxSequenceLength)
      return wrong("tokens",
                   std::to_string(tokens[i]) + " for a sequence of " + std::to_string(sequence.length),
                   "at most " + std::to_string(kMaxSequenceLength) + " in all");
    *pages += pages_of(length, page_size_) - static_cast<std::int64_t>(sequence.pages.size());
    if (!writes_shared_page(sequence, tokens[i])) continue;
    const std::int32_t last = sequence.pages.back();
    if (holders_[static_cast<std::size_t>(last)] - left[last] > 1) {
      ++left[last];
      ++*pages;
    }
  }
  return Status::ok();
}

Status PageTable::pages_to_extend(std::span<const std::int64_t> ids, std::span<const std::int64_t> tokens,
                                  std::int64_t* pages) const {
  const std::lock_guard lock(mutex_);
  return count_pages(ids, tokens, pages);
}

Status PageTable::extend(std::span<const std::int64_t> ids, std::span<const std::int64_t> tokens,
                         std::span<std::int64_t> slots, std::vector<PageCopy>* copies) {
  const std::lock_guard lock(mutex_);
  std::int64_t needed = 0;
  if (Status s = count_pages(ids, tokens, &needed); !s) return s;
  std::int64_t total = 0;
  for (std::int64_t n : tokens) total += n;
  if (static_cast<std::int64_t>(slots.size()) != total)
    return wrong("slots", std::to_string(slots.size()) + " elements",
                 std::to_string(total) + ", one for each new token");
  const std::int64_t available = free_locked();
  if (needed > available)
    return Status::out_of_memory("tokens: got " + std::to_string(total) + ", which need " +
                                 std::to_string(needed) + " pages, expected at most " +
                                 std::to_string(available) + ": " + std::to_string(pages_ - available) +
                                 " of " + std::to_string(pages_) + " pages are used");

  copies->clear();
  auto slot = slots.begin();
  for (std::size_t i = 0; i < ids.size(); ++i) {
    Sequence& sequence = sequences_.find(ids[i])->second;
    if (writes_shared_page(sequence, tokens[i])) {
      const std::int32_t shared = sequence.pages.back();
      sequence.pages.back() = take_page();
      drop_page(shared);
      copies->push_back({shared, sequence.pages.back(), sequence.length % page_size_});
    }
    for (std::int64_t t = 0; t < tokens[i]; ++t, ++sequence.length) {
      const std::int64_t row = sequence.length % page_size_;
      if (row == 0) sequence.pages.push_back(take_page());
      *slot++ = sequence.pages.back() * page_size_ + row;
    }
  }
  return Status::ok();
}

Status PageTable::trim(std::int64_t id, std::int64_t length) {
  const std::lock_guard lock(mutex_);
  const auto found = sequences_.find(id);
  if (found == sequences_.end()) return unknown("id", id);
  Sequence& sequence = found->second;
  if (length < 0 || length > sequence.length)
    return wrong("length", std::to_string(length), "0 to " + std::to_string(sequence.length));
  const auto kept = static_cast<std::size_t>(pages_of(length, page_size_));
  for (; sequence.pages.size() > kept; sequence.pages.pop_back()) drop_page(sequence.pages.back());
  sequence.length = length;
  return Status::ok();
}

Status PageTable::free(std::int64_t id) {
  const std::lock_guard lock(mutex_);
  const auto found = sequences_.find(id);
  if (found == sequences_.end()) return unknown("id", id);
  for (std::int32_t page : found->second.pages) drop_page(page);
  sequences_.erase(found);
  return Status::ok();
}

Status PageTable::length(std::int64_t id, std::int64_t* length) const {
  const std::lock_guard lock(mutex_);
  const Sequence* sequence = nullptr;
  if (Status s = find(id, &sequence); !s) return s;
  *length = sequence->length;
  return Status::ok();
}

Status PageTable::block_columns(std::span<const std::int64_t> ids, std::int64_t* columns) const {
  const std::lock_guard lock(mutex_);
  std::vector<const Sequence*> found;
  if (Status s = find_all(ids, &found); !s) return s;
  *columns = 0;
  for (const Sequence* sequence : found)
    *columns = std::max(*columns, static_cast<std::int64_t>(sequence->pages.size()));
  return Status::ok();
}

Status PageTable::block_table(std::span<const std::int64_t> ids, std::int64_t columns, std::int32_t* blocks,
                              std::int32_t* lengths) const {
  const std::lock_guard lock(mutex_);
  std::vector<const Sequence*> found;
  if (Status s = find_all(ids, &found); !s) return s;
  for (std::size_t i = 0; i < found.size(); ++i) {
    const auto pages = static_cast<std::int64_t>(found[i]->pages.size());
    if (pages > columns)
      return wrong("columns", std::to_string(columns),
                   "at least " + std::to_string(pages) + ", the pages of sequence " + std::to_string(ids[i]));
  }
  for (std::size_t i = 0; i < found.size(); ++i, blocks += columns) {
    std::int32_t* const end = std::copy(found[i]->pages.begin(), found[i]->pages.end(), blocks);
    std::fill(end, blocks + columns, -1);
    if (lengths) lengths[i] = static_cast<std::int32_t>(found[i]->length);
  }
  return Status::ok();
}

Status PageTable::verify() const {
  const std::lock_guard lock(mutex_);
  std::vector<std::int32_t> holders(holders_.size());
  for (const auto& [id, sequence] : sequences_) {
    if (static_cast<std::int64_t>(sequence.pages.size()) != pages_of(sequence.length, page_size_))
      return Status::invalid("sequence " + std::to_string(id) + " has pages that do not fit its length");
    for (std::int32_t page : sequence.pages) ++holders[static_cast<std::size_t>(page)];
  }
  if (holders != holders_) return Status::invalid("a page has other holders than were counted");
  for (std::int32_t page : free_) --holders[static_cast<std::size_t>(page)];
  // Now a free page has -1, all others have their holders.
  for (std::size_t page = 0; page < holders.size(); ++page) {
    if (holders_[page] == 0 && holders[page] == 0)
      return Status::invalid("page " + std::to_string(page) + " is lost");
    if (holders[page] != (holders_[page] == 0 ? -1 : holders_[page]))
      return Status::invalid("page " + std::to_string(page) + " is free twice, or free and held");
  }
  if (static_cast<std::int64_t>(holders_.size()) > pages_)
    return Status::invalid("more pages are used than there are");
  return Status::ok();
}

}  // namespace tileformer
