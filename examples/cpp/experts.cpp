// A layer of mixture of experts, from router logits to combined output, and its gradients. Compared with the
// reference; exit status 1 if they differ.
#include <cmath>
#include <cstdio>
#include <random>
#include <vector>

#include "tileformer/tileformer.h"

namespace {

std::vector<float> random_floats(std::size_t count, float deviation, unsigned seed) {
  std::mt19937 engine(seed);
  std::normal_distribution<float> normal(0, deviation);
  std::vector<float> values(count);
  for (float& x : values) x = normal(engine);
  return values;
}

int report(const tileformer::Status& status) {
  std::fprintf(stderr, "%s\n", status.message().c_str());
  return 1;
}

double largest_difference(const std::vector<float>& a, const std::vector<float>& b) {
  double worst = 0;
  for (std::size_t i = 0; i < a.size(); ++i) worst = std::fmax(worst, std::fabs(a[i] - b[i]));
  return worst;
}

}  // namespace

int main() {
  using namespace tileformer;
  constexpr std::int64_t kTokens = 100, kHidden = 96, kInter = 80, kExperts = 8, kTop = 2;
  std::vector<float> hidden = random_floats(kTokens * kHidden, 1, 1),
                     logits = random_floats(kTokens * kExperts, 1, 2),
                     gate_up = random_floats(kExperts * 2 * kInter * kHidden, 0.1f, 3),
                     down = random_floats(kExperts * kHidden * kInter, 0.1f, 4),
                     grad_out = random_floats(kTokens * kHidden, 1, 5);
  std::vector<float> weights(kTokens * kTop), out(hidden.size()), grad_down(down.size());
  std::vector<std::int32_t> experts(kTokens * kTop);
  const auto pool = make_thread_pool();

  RouteArgs route_args;
  route_args.logits = TensorView::dense(logits.data(), DType::f32, {kTokens, kExperts});
  route_args.weights = TensorView::dense(weights.data(), DType::f32, {kTokens, kTop});
  route_args.experts = TensorView::dense(experts.data(), DType::i32, {kTokens, kTop});
  if (Status s = route(route_args, *pool); !s) return report(s);

  FusedExpertsArgs args;
  args.hidden = TensorView::dense(hidden.data(), DType::f32, {kTokens, kHidden});
  args.gate_up.weight = TensorView::dense(gate_up.data(), DType::f32, {kExperts, 2 * kInter, kHidden});
  args.down.weight = TensorView::dense(down.data(), DType::f32, {kExperts, kHidden, kInter});
  args.weights = route_args.weights;
  args.experts = route_args.experts;
  args.out = TensorView::dense(out.data(), DType::f32, {kTokens, kHidden});
  FusedExpertsPlan plan;
  if (Status s = plan_fused_experts(args, pool->threads(), &plan); !s) return report(s);
  ScratchBuffer scratch;
  if (Status s = fused_experts(args, plan, scratch.reserve(plan.workspace_bytes), *pool); !s)
    return report(s);

  // Gradients that are not asked for are not computed.
  FusedExpertsBackwardArgs backward;
  backward.forward = args;
  backward.grad_out = TensorView::dense(grad_out.data(), DType::f32, {kTokens, kHidden});
  backward.grad_down = TensorView::dense(grad_down.data(), DType::f32, {kExperts, kHidden, kInter});
  if (Status s = fused_experts_backward(backward, *pool); !s) return report(s);

  std::vector<float> expected(out.size()), expected_grad(grad_down.size());
  args.out.data = expected.data();
  if (Status s = fused_experts_reference(args); !s) return report(s);
  backward.grad_down.data = expected_grad.data();
  if (Status s = fused_experts_backward_reference(backward); !s) return report(s);
  const double worst = largest_difference(out, expected),
               worst_grad = largest_difference(grad_down, expected_grad);

  std::printf("tileformer %s, ISA %s, %d threads\n", TILEFORMER_VERSION, name_of(plan.isa), pool->threads());
  std::printf("%s\n", plan.to_string().c_str());
  std::printf("largest difference from the reference: %.1e, of gradients %.1e\n", worst, worst_grad);
  return worst < 1e-4 && worst_grad < 1e-3 ? 0 : 1;
}
