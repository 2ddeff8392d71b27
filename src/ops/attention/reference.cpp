// attention_reference: the definition in attention.h as loops over fp64, one row of scores at a time.
#include "ops/attention/reference.h"

#include <algorithm>

namespace tileformer {
namespace {

using namespace attention::reference;
using attention::KeyRange;
using attention::Problem;
using attention::Sequence;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

void attend(const Head& h) {
  const AttentionArgs& args = h.args;
  const Problem& problem = h.problem;
  const Sequence& s = h.s;
  const std::int64_t kv_head = h.head / problem.group;
  const Rows q(args.query, s.batch, h.head, s.first_query, s.queries);
  const auto rows = [&](const TensorView& view, const TensorView& scale_of_rows) {
    return problem.paged() ? paged_rows(args, view, scale_of_rows, h.sequence, kv_head, s.keys)
                           : Rows(view, s.batch, kv_head, s.first_key, s.keys);
  };
  const Rows k = rows(args.key, args.key_scale), v = rows(args.value, args.value_scale);
  const double sink = args.sinks ? load(args.sinks, h.head) : -kInfinity;

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
      if (!h.sees(i, j, range)) continue;
      seen.push_back({j, h.score(q[i], k[j], i, j)});
      m = std::max(m, seen.back().score);
    }
    if (m == -kInfinity) m = 0;  // nothing with weight: l = 0 below, not exp(-inf + inf)

    double l = std::exp(sink - m);
    std::fill(o.begin(), o.end(), 0.0);
    for (const auto& [j, score] : seen) {
      const double p = std::exp(score - m);
      const double kept = p * h.dropout(i, j);
      l += p;
      for (std::int64_t d = 0; d < problem.dim_v; ++d) o[d] += kept * v[j][d];
    }
    for (std::int64_t d = 0; d < problem.dim_v; ++d) {
      store(args.out, l == 0 ? 0 : o[d] / l, s.batch, h.head, s.first_query + i, d);
    }
    if (args.lse) store(args.lse, m + std::log(l), s.batch, h.head, s.first_query + i);
  }
}

}  // namespace

Status attention_reference(const AttentionArgs& args) {
  Problem problem;
  if (Status status = check(args, &problem); !status) return status;
  if (args.query.shape[0] == 0 || problem.heads == 0 || problem.total_queries == 0) return Status::ok();
  // The scale of the problem is rounded to fp32; the default is exact here.
  const double scale = args.scale ? *args.scale : 1 / std::sqrt(static_cast<double>(problem.dim));
  for (std::int64_t n = 0; n < problem.sequences; ++n) {
    const Sequence s = sequence(args, problem, n);
    for (std::int64_t h = 0; h < problem.heads; ++h) attend(Head{args, problem, s, n, h, scale});
  }
  return Status::ok();
}

}  // namespace tileformer
