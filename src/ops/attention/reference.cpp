// attention_reference: the definition in attention.h as loops over fp64, one row of scores at a time.
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "base/element.h"
#include "ops/attention/problem.h"
#include "tileformer/philox.h"

namespace tileformer {
namespace {

using attention::KeyRange;
using attention::Problem;
using attention::Sequence;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// The address of [a, b, c, d] in elements; dimensions of size 1 repeat.
std::int64_t offset_of(const TensorView& view, std::int64_t a, std::int64_t b, std::int64_t c,
                       std::int64_t d) {
  const std::int64_t index[4] = {a, b, c, d};
  std::int64_t offset = 0;
  for (int i = 0; i < view.rank; ++i) offset += view.shape[i] == 1 ? 0 : index[i] * view.stride[i];
  return offset;
}

double load(const TensorView& view, std::int64_t a, std::int64_t b = 0, std::int64_t c = 0,
            std::int64_t d = 0) {
  return load_element(view.data, view.dtype, offset_of(view, a, b, c, d));
}

void store(const TensorView& view, double x, std::int64_t a, std::int64_t b, std::int64_t c,
           std::int64_t d = 0) {
  store_element(view.data, view.dtype, offset_of(view, a, b, c, d), x);
}

// Rows of one head as fp64, [count, dim].
struct Rows {
  std::int64_t dim;
  std::vector<double> data;

  Rows(const TensorView& view, std::int64_t batch, std::int64_t head, std::int64_t first, std::int64_t count)
      : dim(view.shape[3]), data(static_cast<std::size_t>(count * dim)) {
    for (std::int64_t i = 0; i < count; ++i) {
      for (std::int64_t d = 0; d < dim; ++d) data[i * dim + d] = load(view, batch, head, first + i, d);
    }
  }
  const double* operator[](std::int64_t i) const { return data.data() + i * dim; }
};

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
    return args.attn_mask.dtype == DType::boolean ? mask != 0 : mask != -kInfinity;
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

  void attend() const {
    const std::int64_t kv_head = head / problem.group;
    const Rows q(args.query, s.batch, head, s.first_query, s.queries);
    const Rows k(args.key, s.batch, kv_head, s.first_key, s.keys);
    const Rows v(args.value, s.batch, kv_head, s.first_key, s.keys);
    const double sink = args.sinks ? load(args.sinks, head) : -kInfinity;

    struct Seen {
      std::int64_t key;
      double score;
    };
    std::vector<Seen> seen;
    std::vector<double> o(static_cast<std::size_t>(problem.dim_v));
    for (std::int64_t i = 0; i < s.queries; ++i) {
      const KeyRange range = key_range(args, s, i);
      double m = sink;
      seen.clear();
      for (std::int64_t j = 0; j < s.keys; ++j) {
        if (!sees(i, j, range)) continue;
        seen.push_back({j, score(q[i], k[j], i, j)});
        m = std::max(m, seen.back().score);
      }
      if (m == -kInfinity) m = 0;  // nothing with weight: l = 0 below, not exp(-inf + inf)

      double l = std::exp(sink - m);
      std::fill(o.begin(), o.end(), 0.0);
      for (const auto& [j, score] : seen) {
        const double p = std::exp(score - m);
        const double kept = p * dropout(i, j);
        l += p;
        for (std::int64_t d = 0; d < problem.dim_v; ++d) o[d] += kept * v[j][d];
      }
      for (std::int64_t d = 0; d < problem.dim_v; ++d) {
        store(args.out, l == 0 ? 0 : o[d] / l, s.batch, head, s.first_query + i, d);
      }
      if (args.lse) store(args.lse, m + std::log(l), s.batch, head, s.first_query + i);
    }
  }
};

}  // namespace

Status attention_reference(const AttentionArgs& args) {
  Problem problem;
  if (Status status = check(args, &problem); !status) return status;
  if (args.query.shape[0] == 0 || problem.heads == 0 || problem.total_queries == 0) return Status::ok();
  // The scale of the problem is rounded to fp32; the default is exact here.
  const double scale = args.scale ? *args.scale : 1 / std::sqrt(static_cast<double>(problem.dim));
  for (std::int64_t n = 0; n < problem.sequences; ++n) {
    const Sequence s = sequence(args, problem, n);
    for (std::int64_t h = 0; h < problem.heads; ++h) Head{args, problem, s, n, h, scale}.attend();
  }
  return Status::ok();
}

}  // namespace tileformer
