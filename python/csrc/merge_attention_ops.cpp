// torch.ops.tileformer.merge_attention_states: (part_out, part_lse) of the same queries over several sets of
// keys -> (out, lse) over all of them. No autograd formula: for inference.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>

#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "status_error.h"
#include "tileformer/merge_attention.h"
#include "torch_executor.h"
#include "torch_tensor.h"

namespace tileformer::torch_binding {
namespace {

using torch::stable::detail::from;
using torch::stable::detail::to;

void merge_attention_states_op(StableIValue* stack, std::uint64_t, std::uint64_t) {
  auto outs = to<std::vector<Tensor>>(stack[0]);
  const auto lses = to<std::vector<Tensor>>(stack[1]);
  if (outs.empty()) throw std::invalid_argument("part_out is empty; needed is one state or more");
  MergeAttentionArgs args;
  for (Tensor& out : outs) {
    if (!has_unit_last_stride(out)) out = torch::stable::contiguous(out);
    args.part_out.push_back(view_of(out, "part_out"));
  }
  for (const Tensor& lse : lses) args.part_lse.push_back(view_of(lse, "part_lse"));
  const TensorView& first = args.part_out[0];
  if (first.rank != 4)
    throw std::invalid_argument("part_out[0] has " + std::to_string(first.rank) +
                                " dimensions; needed are 4, [batch, heads, seq, dim_v]");
  const auto& n = first.shape;
  const Tensor out = empty_like_layout({n[0], n[1], n[2], n[3]}, outs[0]);
  const Tensor lse = empty_dense({n[0], n[1], n[2]}, first.dtype == DType::f64 ? DType::f64 : DType::f32);
  args.out = view_of(out, "out");
  args.lse = view_of(lse, "lse");
  TorchExecutor executor;
  raise_if_failed(merge_attention_states(args, executor));
  stack[0] = from(out);
  stack[1] = from(lse);
}

// Every device and layout but a dense CPU tensor ends here.
void refuse_device(StableIValue* stack, std::uint64_t, std::uint64_t) {
  const auto outs = to<std::vector<Tensor>>(stack[0]), lses = to<std::vector<Tensor>>(stack[1]);
  throw std::invalid_argument("all tensors have to be dense and on the CPU: tileformer runs on CPUs only");
}

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(tileformer, m) {
  m.def("merge_attention_states(Tensor[] part_out, Tensor[] part_lse) -> (Tensor out, Tensor lse)");
}

STABLE_TORCH_LIBRARY_IMPL(tileformer, CPU, m) { m.impl("merge_attention_states", merge_attention_states_op); }

STABLE_TORCH_LIBRARY_IMPL(tileformer, CompositeExplicitAutograd, m) {
  m.impl("merge_attention_states", refuse_device);
}

}  // namespace tileformer::torch_binding
