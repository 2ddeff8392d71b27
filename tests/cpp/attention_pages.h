// Which page holds which keys: pages out of order, some shared by sequences, some of nobody.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <random>
#include <utility>
#include <vector>

#include "guarded_tensors.h"
#include "ops/attention/cases.h"

namespace tileformer::test {

class Pages {
 public:
  template <typename Random>
  Pages(const attention::AttentionCase& c, Random& random) : size_(c.page_size) {
    constexpr std::int64_t kUnused = 3;
    for (std::int64_t n = 0; n < c.sequences(); ++n) {
      const std::int64_t length = c.keys_of(n), blocks = (length + size_ - 1) / size_;
      table_.emplace_back();
      // Every other sequence begins as the one before it does.
      const std::int64_t shared =
          n % 2 == 0 ? 0 : std::min(blocks, std::int64_t(table_[n - 1].size()) / 2 + 1);
      for (std::int64_t b = 0; b < blocks; ++b)
        table_[n].push_back(b < shared && b < std::int64_t(table_[n - 1].size()) ? table_[n - 1][b]
                                                                                 : count_++);
      columns_ = std::max(columns_, blocks);
    }
    std::vector<std::int64_t> place;
    for (std::int64_t page = 0; page < count_ + kUnused; ++page) place.push_back(page);
    std::shuffle(place.begin(), place.end(), random);
    used_.resize(place.size());
    count_ += kUnused;
    for (std::size_t n = 0; n < table_.size(); ++n) {
      for (std::size_t b = 0; b < table_[n].size(); ++b) {
        std::int64_t& page = table_[n][b];
        page = place[page];
        const std::int64_t rest = c.keys_of(std::int64_t(n)) - std::int64_t(b) * size_;
        used_[page] = std::max(used_[page], std::min(rest, size_));
      }
    }
  }

  std::int64_t count() const { return count_; }
  // Whether a sequence has a key there.
  bool used(std::int64_t page, std::int64_t row) const { return row < used_[page]; }

  // block_table with a column more than is needed (where pages of that size may have several). What lies
  // behind a sequence's keys is no page.
  TensorView table(GuardedTensors& tensors) const {
    const std::int64_t sequences = std::int64_t(table_.size()), columns = columns_ + (size_ % 16 == 0);
    const TensorView view = tensors.allocate(DType::i32, 2, {sequences, columns}, {columns + 2, 1});
    const std::int64_t nowhere[] = {-1, std::numeric_limits<std::int32_t>::max(), count_};
    for_each_index(view, [&](const Index& at) {
      const auto& blocks = table_[at[0]];
      const bool exists = at[1] < std::int64_t(blocks.size());
      set(view, at, static_cast<double>(exists ? blocks[at[1]] : nowhere[(at[0] + at[1]) % 3]));
    });
    return view;
  }

 private:
  std::int64_t size_, count_ = 0, columns_ = 0;
  std::vector<std::vector<std::int64_t>> table_;
  std::vector<std::int64_t> used_;  // rows of a page that hold keys
};

// A scale with which most normal numbers fit the codes of the type, another in every row.
template <typename Random>
float scale_of_codes(DType dtype, Random& random) {
  const double spread = std::uniform_real_distribution<double>(0.7, 1.4)(random);
  return static_cast<float>(spread / (dtype == DType::i8 ? 40 : dtype == DType::f8_e4m3 ? 90 : 9000));
}

}  // namespace tileformer::test
