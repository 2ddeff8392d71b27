// Grouped-query causal attention on a thread pool, compared with the reference. Exit status 1 if they differ.
#include <cmath>
#include <cstdio>
#include <random>
#include <vector>

#include "tileformer/tileformer.h"

namespace {

std::vector<float> random_floats(std::size_t count, unsigned seed) {
  std::mt19937 engine(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& x : values) x = normal(engine);
  return values;
}

int report(const tileformer::Status& status) {
  std::fprintf(stderr, "%s\n", status.message().c_str());
  return 1;
}

}  // namespace

int main() {
  using namespace tileformer;
  constexpr std::int64_t kBatch = 2, kHeads = 8, kKvHeads = 2, kSeq = 200, kDim = 64;
  std::vector<float> q = random_floats(kBatch * kHeads * kSeq * kDim, 1);
  std::vector<float> k = random_floats(kBatch * kKvHeads * kSeq * kDim, 2);
  std::vector<float> v = random_floats(kBatch * kKvHeads * kSeq * kDim, 3);
  std::vector<float> out(q.size()), expected(q.size());

  // Tensors are views; here [batch, seq, heads, dim] in memory, seen as [batch, heads, seq, dim].
  AttentionArgs args;
  args.query = TensorView::dense(q.data(), DType::f32, {kBatch, kSeq, kHeads, kDim}).transposed(1, 2);
  args.key = TensorView::dense(k.data(), DType::f32, {kBatch, kSeq, kKvHeads, kDim}).transposed(1, 2);
  args.value = TensorView::dense(v.data(), DType::f32, {kBatch, kSeq, kKvHeads, kDim}).transposed(1, 2);
  args.out = TensorView::dense(out.data(), DType::f32, {kBatch, kSeq, kHeads, kDim}).transposed(1, 2);
  args.causal = Causal::bottom_right;

  const auto pool = make_thread_pool();
  AttentionPlan plan;
  if (Status s = plan_attention(args, pool->threads(), &plan); !s) return report(s);
  ScratchBuffer scratch;
  if (Status s = attention_forward(args, plan, scratch.reserve(plan.workspace_bytes), *pool); !s)
    return report(s);

  args.out.data = expected.data();
  if (Status s = attention_reference(args); !s) return report(s);
  double worst = 0;
  for (std::size_t i = 0; i < out.size(); ++i) worst = std::fmax(worst, std::fabs(out[i] - expected[i]));

  std::printf("tileformer %s, ISA %s, %d threads\n", TILEFORMER_VERSION, name_of(plan.isa), pool->threads());
  std::printf("%s\n", plan.to_string().c_str());
  std::printf("largest difference from the reference: %.1e\n", worst);
  return worst < 1e-4 ? 0 : 1;
}
