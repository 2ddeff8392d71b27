// The definition, expert by expert, in fp64.
#include "ops/moe/experts/reference.h"

#include "ops/moe/experts/check.h"

namespace tileformer {

using namespace moe;
using namespace moe::reference;

Status fused_experts_reference(const FusedExpertsArgs& args) {
  Problem p;
  if (Status s = check(args, &p); !s) return s;
  Pairs sorted;
  if (Status s = sorted.sort(args.experts, p.experts); !s) return s;
  std::vector<Row> sum(std::size_t(p.tokens), Row(std::size_t(p.hidden)));
  std::int64_t pair = 0;
  for (std::int64_t e = 0; e < p.experts; ++e) {
    const std::span<const Pair> pairs = sorted.of(e);
    if (pairs.empty()) continue;
    const Matrix gate_up(args.gate_up, e, 2 * p.inter, p.hidden), down(args.down, e, p.hidden, p.inter);
    for (const auto [t, j] : pairs) {
      const Row gu = gates_first(gate_up.times(row_of(args.hidden, t)), args.interleaved);
      Row h(std::size_t(p.inter));
      for (std::int64_t i = 0; i < p.inter; ++i) h[i] = activate(args, gu[i], gu[p.inter + i]).h;
      if (args.gate_up_out)
        for (std::int64_t i = 0; i < 2 * p.inter; ++i) store(args.gate_up_out, gu[i], pair, i);
      ++pair;
      const Row y = down.times(h);
      const double weight = load(args.weights, t, j);
      for (std::int64_t c = 0; c < p.hidden; ++c) sum[t][c] += weight * y[c];
    }
  }
  for (std::int64_t t = 0; t < p.tokens; ++t)
    for (std::int64_t c = 0; c < p.hidden; ++c) store(args.out, sum[t][c], t, c);
  return Status::ok();
}

}  // namespace tileformer
