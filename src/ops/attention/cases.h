// One attention problem in words: what tests and the fuzzer make tensors from. case_table.h lists the ones
// that are always tested.
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "tileformer/attention.h"

namespace tileformer::attention {

// How [batch, heads, seq, dim] lies in memory.
enum class Layout {
  bhsd,
  bshd,
  padded,       // gaps after every row, head and batch entry; rows start at odd addresses
  reversed,     // negative stride along seq
  expanded_kv,  // bshd, key and value of one batch entry and kv head shared by all (stride 0)
};

enum class Values {
  normal,
  large,    // queries times 30: nearly one-hot rows
  growing,  // key j times 1 + j / 20: the running maximum keeps moving
  shifted,  // keys with a common offset: scores far from 0 that differ little
};

struct Mask {
  enum class Kind { none, boolean, like_query, f32, f64 } kind = Kind::none;
  enum class Content {
    random,  // seven in ten true; floats normal, some -inf
    blocks,  // long stretches hidden, so that whole blocks are
    hidden,  // nothing is seen
    lowest,  // the lowest finite float in place of -inf, some rows wholly
  } content = Content::random;
  enum class Order {
    dense,
    transposed,  // unit stride along queries
    sparse,      // stride 3 along keys
    expanded,    // sizes that repeat have full size and stride 0 instead of size 1
  } order = Order::dense;
  bool batch = false, heads = false, queries = true, keys = true;  // whether it varies along the dimension
};

struct AttentionCase {
  std::string name;
  std::int64_t batch = 1, heads = 1, kv_heads = 1, seq_q = 1, seq_k = 1, dim = 64, dim_v = 64;
  Causal causal = Causal::none;
  std::int64_t window_left = -1, window_right = -1;
  Mask mask{};
  bool alibi = false, alibi_per_sequence = false;
  float softcap = 0;
  bool sinks = false;
  bool lse = true;
  // Packed when not empty: batch = 1 and seq_q, seq_k follow.
  std::vector<std::int64_t> query_lengths{}, key_lengths{};
  bool key_range = false;  // some keys of each sequence at both ends are padding, one sequence has none left
  bool query_offset = false;  // diagonals that differ between sequences, some outside the keys
  Layout layout = Layout::bhsd;
  Values values = Values::normal;
  float dropout_p = 0;
  std::optional<float> scale{};
  // Keys in pages when above 0: key_lengths has an entry for each sequence, packed or not, and seq_k is the
  // longest. `layout` then says how [pages, kv_heads, page_size, dim] lies in memory.
  std::int64_t page_size = 0;
  std::optional<DType> key_dtype{}, value_dtype{};  // of the pages; none: as the query's
  bool value_in_key = false;                        // V is the first dim_v columns of K, as in MLA

  // What a test prints.
  friend void PrintTo(const AttentionCase& c, std::ostream* os) { *os << c.name; }

  bool packed() const { return !query_lengths.empty(); }
  bool paged() const { return page_size > 0; }
  std::int64_t sequences() const {
    return packed() ? static_cast<std::int64_t>(query_lengths.size()) : batch;
  }
  std::int64_t queries_of(std::int64_t n) const { return packed() ? query_lengths[n] : seq_q; }
  std::int64_t keys_of(std::int64_t n) const { return packed() || paged() ? key_lengths[n] : seq_k; }
  // What seq_q and seq_k follow from.
  void set_totals() {
    if (packed()) seq_q = std::accumulate(query_lengths.begin(), query_lengths.end(), std::int64_t{0});
    if (packed()) seq_k = std::accumulate(key_lengths.begin(), key_lengths.end(), std::int64_t{0});
    if (paged()) {
      seq_k = 0;
      for (std::int64_t length : key_lengths) seq_k = std::max(seq_k, length);
    }
  }
};

}  // namespace tileformer::attention
