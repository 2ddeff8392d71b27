// What the reference loops of forward and backward share: tensors in fp64, and the score of a position.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "base/element.h"
#include "ops/attention/index_at.h"
#include "ops/attention/problem.h"
#include "tileformer/philox.h"

namespace tileformer::attention::reference {

// The address of [a, b, c, d] in elements; dimensions of size 1 repeat.
inline std::int64_t offset_of(const TensorView& view, std::int64_t a, std::int64_t b, std::int64_t c,
                              std::int64_t d) {
  const std::int64_t index[4] = {a, b, c, d};
  std::int64_t offset = 0;
  for (int i = 0; i < view.rank; ++i) offset += view.shape[i] == 1 ? 0 : index[i] * view.stride[i];
  return offset;
}

inline double load(const TensorView& view, std::int64_t a, std::int64_t b = 0, std::int64_t c = 0,
                   std::int64_t d = 0) {
  return load_element(view.data, view.dtype, offset_of(view, a, b, c, d));
}

inline void store(const TensorView& view, double x, std::int64_t a, std::int64_t b, std::int64_t c,
                  std::int64_t d = 0) {
  store_element(view.data, view.dtype, offset_of(view, a, b, c, d), x);
}

// Rows of one head as fp64, [count, dim].
struct Rows {
  std::int64_t dim;
  std::vector<double> data;

  Rows(std::int64_t columns, std::vector<double> elements) : dim(columns), data(std::move(elements)) {}
  Rows(const TensorView& view, std::int64_t batch, std::int64_t head, std::int64_t first, std::int64_t count)
      : dim(view.shape[3]), data(static_cast<std::size_t>(count * dim)) {
    for (std::int64_t i = 0; i < count; ++i) {
      for (std::int64_t d = 0; d < dim; ++d) data[i * dim + d] = load(view, batch, head, first + i, d);
    }
  }
  const double* operator[](std::int64_t i) const { return data.data() + i * dim; }
};

// The keys of a sequence in pages, decoded, [count, dim].
inline Rows paged_rows(const AttentionArgs& args, const TensorView& pages, const TensorView& scale,
                       std::int64_t sequence, std::int64_t head, std::int64_t count) {
  const std::int64_t page_size = pages.shape[2];
  Rows rows{pages.shape[3], std::vector<double>(static_cast<std::size_t>(count * pages.shape[3]))};
  for (std::int64_t j = 0; j < count; ++j) {
    const std::int64_t page = index_at(args.block_table, sequence, j / page_size), row = j % page_size;
    const double factor = scale ? load(scale, page, head, row) : 1;
    for (std::int64_t d = 0; d < rows.dim; ++d)
      rows.data[j * rows.dim + d] = factor * load(pages, page, head, row, d);
  }
  return rows;
}

// One query head of one sequence.
struct Head {
  const AttentionArgs& args;
  const Problem& problem;
  const Sequence& s;
  std::int64_t sequence, head;
  double scale;

  // By length, range, causal and window, and by the mask.
  bool sees(std::int64_t i, std::int64_t j, const KeyRange& range) const {
    if (j < range.begin || j >= range.end) return false;
    if (!args.attn_mask) return true;
    const double mask = load(args.attn_mask, sequence, head, i, j);
    return args.attn_mask.dtype == DType::boolean ? mask != 0
                                                  : mask != -std::numeric_limits<double>::infinity();
  }

  double score(const double* q, const double* k, std::int64_t i, std::int64_t j) const {
    double x = 0;
    for (std::int64_t d = 0; d < problem.dim; ++d) x += q[d] * k[d];
    x *= scale;
    if (args.softcap > 0) x = args.softcap * std::tanh(x / args.softcap);
    if (args.attn_mask && args.attn_mask.dtype != DType::boolean)
      x += load(args.attn_mask, sequence, head, i, j);
    if (args.alibi_slopes) {
      const double slope = args.alibi_slopes.rank == 1 ? load(args.alibi_slopes, head)
                                                       : load(args.alibi_slopes, sequence, head);
      x -= slope * std::abs(static_cast<double>(i + s.diagonal - j));
    }
    return x;
  }

  // What dropout multiplies the probability by: 0 or 1 / (1 - p).
  double dropout(std::int64_t i, std::int64_t j) const {
    if (args.dropout_p == 0) return 1;
    const PhiloxWords random = philox4x32(
        static_cast<std::uint32_t>(j / 4), static_cast<std::uint32_t>(i),
        static_cast<std::uint32_t>(sequence * problem.heads + head),
        static_cast<std::uint32_t>(args.dropout_offset), static_cast<std::uint32_t>(args.dropout_seed),
        static_cast<std::uint32_t>((args.dropout_seed >> 32) ^ (args.dropout_offset >> 32)));
    const bool kept = random.word[j % 4] >= dropout_threshold(args.dropout_p);
    return kept ? 1 / (1 - static_cast<double>(args.dropout_p)) : 0;
  }

  // The derivative of the softcap at a score.
  double cap_slope(const double* q, const double* k) const {
    if (!(args.softcap > 0)) return 1;
    double x = 0;
    for (std::int64_t d = 0; d < problem.dim; ++d) x += q[d] * k[d];
    const double t = std::tanh(x * scale / args.softcap);
    return 1 - t * t;
  }
};

}  // namespace tileformer::attention::reference
