// The gradients as the contract states them, expert by expert, in fp64.
#include "ops/moe/experts/reference.h"

#include "ops/moe/experts/check.h"

namespace tileformer {

using namespace moe;
using namespace moe::reference;

namespace {

using Rows = std::vector<Row>;

Rows zeros(std::int64_t rows, std::int64_t columns) {
  return Rows(static_cast<std::size_t>(rows), Row(static_cast<std::size_t>(columns)));
}

// to += factor * column row^T
void add_outer(Rows& to, double factor, const Row& column, const Row& row) {
  for (std::size_t i = 0; i < column.size(); ++i)
    for (std::size_t c = 0; c < row.size(); ++c) to[i][c] += factor * column[i] * row[c];
}

// W^T y
Row transposed_times(const Matrix& m, const Row& y) {
  Row x(static_cast<std::size_t>(m.in));
  for (std::int64_t i = 0; i < m.out; ++i)
    for (std::int64_t c = 0; c < m.in; ++c) x[c] += m.w[i][c] * y[i];
  return x;
}

void store_expert(const TensorView& grad, std::int64_t expert, const Rows& rows) {
  if (!grad) return;
  for (std::size_t i = 0; i < rows.size(); ++i)
    for (std::size_t c = 0; c < rows[i].size(); ++c)
      store(grad, rows[i][c], expert, std::int64_t(i), std::int64_t(c));
}

void store_rows(const TensorView& grad, const Rows& rows) {
  if (!grad) return;
  for (std::size_t i = 0; i < rows.size(); ++i)
    for (std::size_t c = 0; c < rows[i].size(); ++c)
      store(grad, rows[i][c], std::int64_t(i), std::int64_t(c));
}

// (d gate, d up), gates first, in the order of gate_up's rows.
Row in_storage_order(const Row& gates_first, bool interleaved) {
  if (!interleaved) return gates_first;
  const std::size_t inter = gates_first.size() / 2;
  Row rows(gates_first.size());
  for (std::size_t i = 0; i < inter; ++i) {
    rows[2 * i] = gates_first[i];
    rows[2 * i + 1] = gates_first[inter + i];
  }
  return rows;
}

}  // namespace

Status fused_experts_backward_reference(const FusedExpertsBackwardArgs& args) {
  Problem p;
  const FusedExpertsArgs& f = args.forward;
  if (Status s = check(args, &p); !s) return s;
  Pairs sorted;
  if (Status s = sorted.sort(f.experts, p.experts); !s) return s;
  Rows grad_hidden = zeros(p.tokens, p.hidden), grad_weights = zeros(p.tokens, p.k);
  Rows grad_gate_up_bias = zeros(p.experts, 2 * p.inter), grad_down_bias = zeros(p.experts, p.hidden);
  std::int64_t pair = 0;
  for (std::int64_t e = 0; e < p.experts; ++e) {
    Rows grad_gate_up = zeros(2 * p.inter, p.hidden), grad_down = zeros(p.hidden, p.inter);
    const std::span<const Pair> pairs = sorted.of(e);
    if (!pairs.empty()) {
      const Matrix gate_up(f.gate_up, e, 2 * p.inter, p.hidden), down(f.down, e, p.hidden, p.inter);
      for (const auto [t, j] : pairs) {
        const Row x = row_of(f.hidden, t), dy = row_of(args.grad_out, t);
        const Row gu =
            f.gate_up_out ? row_of(f.gate_up_out, pair) : gates_first(gate_up.times(x), f.interleaved);
        ++pair;
        const Row q = transposed_times(down, dy);
        const double weight = load(f.weights, t, j);
        double grad_weight = 0;
        Row h(std::size_t(p.inter)), d(2 * std::size_t(p.inter));
        for (std::int64_t i = 0; i < p.inter; ++i) {
          const Activated a = activate(f, gu[i], gu[p.inter + i]);
          h[i] = a.h;
          d[i] = weight * q[i] * a.by_gate;
          d[p.inter + i] = weight * q[i] * a.by_up;
          grad_weight += q[i] * a.h;
        }
        for (std::int64_t c = 0; c < p.hidden; ++c) grad_weight += dy[c] * down.bias[c];
        grad_weights[t][j] = grad_weight;

        d = in_storage_order(d, f.interleaved);
        const Row dx = transposed_times(gate_up, d);
        for (std::int64_t c = 0; c < p.hidden; ++c) grad_hidden[t][c] += dx[c];
        add_outer(grad_gate_up, 1, d, x);
        add_outer(grad_down, weight, dy, h);
        for (std::size_t i = 0; i < d.size(); ++i) grad_gate_up_bias[e][i] += d[i];
        for (std::size_t c = 0; c < dy.size(); ++c) grad_down_bias[e][c] += weight * dy[c];
      }
    }
    store_expert(args.grad_gate_up, e, grad_gate_up);
    store_expert(args.grad_down, e, grad_down);
  }
  store_rows(args.grad_hidden, grad_hidden);
  store_rows(args.grad_weights, grad_weights);
  store_rows(args.grad_gate_up_bias, grad_gate_up_bias);
  store_rows(args.grad_down_bias, grad_down_bias);
  return Status::ok();
}

}  // namespace tileformer
