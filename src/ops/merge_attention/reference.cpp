// The definition, row by row, in fp64.
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "ops/attention/reference.h"
#include "ops/merge_attention/check.h"

namespace tileformer {
namespace {

using attention::reference::load;
using attention::reference::store;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

void merge_row(const MergeAttentionArgs& args, std::int64_t b, std::int64_t h, std::int64_t i) {
  struct Part {
    const TensorView* out;
    double lse;
  };
  std::vector<Part> seen;
  double m = -kInfinity, sum = 0;
  for (std::size_t p = 0; p < args.part_out.size(); ++p) {
    const double lse = load(args.part_lse[p], b, h, i);
    if (lse != -kInfinity) seen.push_back({&args.part_out[p], lse});
    m = std::max(m, lse);
  }
  std::vector<double> o(static_cast<std::size_t>(args.out.shape[3]));
  for (const Part& part : seen) {
    const double weight = m == kInfinity && part.lse == kInfinity ? 1 : std::exp(part.lse - m);
    sum += weight;
    for (std::size_t d = 0; d < o.size(); ++d) o[d] += weight * load(*part.out, b, h, i, std::int64_t(d));
  }
  for (std::size_t d = 0; d < o.size(); ++d)
    store(args.out, seen.empty() ? 0 : o[d] / sum, b, h, i, std::int64_t(d));
  if (args.lse) store(args.lse, seen.empty() ? -kInfinity : m + std::log(sum), b, h, i);
}

}  // namespace

Status merge_attention_states_reference(const MergeAttentionArgs& args) {
  if (Status s = merge_attention::check(args); !s) return s;
  for (std::int64_t b = 0; b < args.out.shape[0]; ++b)
    for (std::int64_t h = 0; h < args.out.shape[1]; ++h)
      for (std::int64_t i = 0; i < args.out.shape[2]; ++i) merge_row(args, b, h, i);
  return Status::ok();
}

}  // namespace tileformer
