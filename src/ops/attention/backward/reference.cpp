// attention_backward_reference: the definition in attention_backward.h as loops over fp64.
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "base/element.h"
#include "ops/attention/backward/plan.h"
#include "ops/attention/reference.h"

namespace tileformer {
namespace {

using namespace attention::reference;
using attention::key_range;
using attention::Problem;
using attention::Sequence;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// fp64 sums for a whole output, rounded once at the end.
struct Sums {
  const TensorView& view;
  std::vector<double> data;

  explicit Sums(const TensorView& v) : view(v), data(static_cast<std::size_t>(v ? v.elements() : 0)) {}
  std::int64_t index(std::int64_t a, std::int64_t b, std::int64_t c, std::int64_t d) const {
    const std::int64_t at[4] = {a, b, c, d};
    std::int64_t i = 0;
    for (int n = 0; n < view.rank; ++n) i = i * view.shape[n] + (view.shape[n] == 1 ? 0 : at[n]);
    return i;
  }
  void add(double x, std::int64_t a, std::int64_t b = 0, std::int64_t c = 0, std::int64_t d = 0) {
    if (view) data[static_cast<std::size_t>(index(a, b, c, d))] += x;
  }
  // weight * x onto the row [a, b, c].
  void add_row(double weight, const double* x, std::int64_t a, std::int64_t b, std::int64_t c) {
    if (!view) return;
    double* row = data.data() + index(a, b, c, 0);
    for (std::int64_t d = 0; d < view.shape[3]; ++d) row[d] += weight * x[d];
  }
  void store_all() const {
    if (!view) return;
    const std::int64_t n[4] = {view.shape[0], view.rank > 1 ? view.shape[1] : 1,
                               view.rank > 2 ? view.shape[2] : 1, view.rank > 3 ? view.shape[3] : 1};
    for (std::int64_t a = 0; a < n[0]; ++a)
      for (std::int64_t b = 0; b < n[1]; ++b)
        for (std::int64_t c = 0; c < n[2]; ++c)
          for (std::int64_t d = 0; d < n[3]; ++d)
            store(view, data[static_cast<std::size_t>(index(a, b, c, d))], a, b, c, d);
  }
};

struct Seen {
  std::int64_t key;
  double score;
};

// exp(score - lse), or the same from the row's own scores where lse is far (kernel_args.h). With a lse of
// -inf nothing has weight.
struct Softmax {
  double shift, sum = 1;

  Softmax(double lse, double sink, const std::vector<Seen>& seen)
      : shift(lse == -kInfinity ? kInfinity : lse) {
    if (!(shift < attention::kFarLse) || seen.empty()) return;
    shift = sink;
    for (const Seen& s : seen) shift = std::max(shift, s.score);
    sum = std::exp(sink - shift);
    for (const Seen& s : seen) sum += std::exp(s.score - shift);
  }
  double share(double score) const { return std::exp(score - shift) / sum; }
};

}  // namespace

Status attention_backward_reference(const AttentionBackwardArgs& args) {
  Problem problem;
  if (Status status = check(args, &problem); !status) return status;
  const AttentionArgs& f = args.forward;
  const double scale = f.scale ? *f.scale : 1 / std::sqrt(static_cast<double>(problem.dim));
  std::vector<Seen> seen;
  Sums dq(args.grad_query), dk(args.grad_key), dv(args.grad_value), dmask(args.grad_mask),
      dsinks(args.grad_sinks);

  for (std::int64_t n = 0; n < problem.sequences; ++n) {
    const Sequence s = sequence(f, problem, n);
    for (std::int64_t h = 0; h < problem.heads; ++h) {
      const std::int64_t kv_head = h / problem.group;
      const Head head{f, problem, s, n, h, scale};
      const Rows q(f.query, s.batch, h, s.first_query, s.queries),
          k(f.key, s.batch, kv_head, s.first_key, s.keys), v(f.value, s.batch, kv_head, s.first_key, s.keys),
          out(f.out, s.batch, h, s.first_query, s.queries),
          grad(args.grad_out, s.batch, h, s.first_query, s.queries);
      for (std::int64_t i = 0; i < s.queries; ++i) {
        const std::int64_t row = s.first_query + i;
        double term = args.grad_lse ? -load(args.grad_lse, s.batch, h, row) : 0;
        for (std::int64_t d = 0; d < problem.dim_v; ++d) term += grad[i][d] * out[i][d];
        const double sink = f.sinks ? load(f.sinks, h) : -kInfinity;
        seen.clear();
        const attention::KeyRange range = key_range(f, s, i);
        for (std::int64_t j = 0; j < s.keys; ++j)
          if (head.sees(i, j, range)) seen.push_back({j, head.score(q[i], k[j], i, j)});
        const Softmax softmax(load(f.lse, s.batch, h, row), sink, seen);
        if (sink != -kInfinity) dsinks.add(-softmax.share(sink) * term, h);
        for (const auto& [j, score] : seen) {
          const double p = softmax.share(score), kept = head.dropout(i, j);
          double dp = 0;
          for (std::int64_t d = 0; d < problem.dim_v; ++d) dp += grad[i][d] * v[j][d];
          const double ds = p * (kept * dp - term);
          dmask.add(ds, n, h, i, j);
          const double dx = ds * head.cap_slope(q[i], k[j]) * scale;
          dq.add_row(dx, k[j], s.batch, h, row);
          dk.add_row(dx, q[i], s.batch, kv_head, s.first_key + j);
          dv.add_row(p * kept, grad[i], s.batch, kv_head, s.first_key + j);
        }
      }
    }
  }
  for (const Sums* sums : {&dq, &dk, &dv, &dmask, &dsinks}) sums->store_all();
  return Status::ok();
}

}  // namespace tileformer
