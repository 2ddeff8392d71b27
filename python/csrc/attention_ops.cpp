// torch.ops.tileformer.attention_*: one computation behind three names.
//
// attention_forward    -> (out, lse). Carries an autograd formula, registered from Python.
// attention_inference  -> out. Has none: it costs some 5 us per call even where no gradient is wanted.
// attention_explain    -> the plan and the slower paths taken; computes nothing. UTF-8 in a uint8 tensor:
//                         torch never frees a str that crosses the stable ABI.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>

#include <cstring>
#include <stdexcept>
#include <string>

#include "attention_call.h"
#include "status_error.h"
#include "tileformer/peak.h"
#include "torch_executor.h"

namespace tileformer::torch_binding {
namespace {

using torch::stable::detail::from;
using torch::stable::detail::to;

void attention_forward_op(StableIValue* stack, std::uint64_t, std::uint64_t) {
  AttentionCall call(stack);
  call.bind();
  const Tensor out = call.allocate_out(), lse = call.allocate_lse();
  call.run();
  stack[0] = from(out);
  stack[1] = from(lse);
}

void attention_inference_op(StableIValue* stack, std::uint64_t, std::uint64_t) {
  AttentionCall call(stack);
  call.bind();
  const Tensor out = call.allocate_out();
  call.run();
  stack[0] = from(out);
}

void attention_explain_op(StableIValue* stack, std::uint64_t, std::uint64_t) {
  AttentionCall call(stack);
  const std::string copied = call.copied();
  call.bind();
  const Tensor out = call.allocate_out();
  AttentionPlan plan;
  raise_if_failed(plan_attention(call.args, TorchExecutor().threads(), &plan));
  std::string text = plan.to_string();
  if (!copied.empty()) text += "\ncopied because their last dimension is not adjacent in memory: " + copied;
  const Tensor bytes =
      torch::stable::empty({static_cast<std::int64_t>(text.size())}, torch::headeronly::ScalarType::Byte);
  std::memcpy(bytes.mutable_data_ptr(), text.data(), text.size());
  stack[0] = from(bytes);
}

void measure_peak_op(StableIValue* stack, std::uint64_t, std::uint64_t) {
  double gflops = 0;
  raise_if_failed(measure_peak(static_cast<DType>(to<std::int64_t>(stack[0])), &gflops));
  stack[0] = from(gflops);
}

// Every device and layout but a dense CPU tensor ends here.
void refuse_device(StableIValue* stack, std::uint64_t, std::uint64_t) {
  const AttentionCall call(stack);
  throw std::invalid_argument(
      "query, key and value have to be dense tensors on the CPU: tileformer runs on CPUs only");
}

}  // namespace

STABLE_TORCH_LIBRARY(tileformer, m) {
  m.def("attention_forward" TILEFORMER_ATTENTION_SCHEMA " -> (Tensor out, Tensor lse)");
  m.def("attention_inference" TILEFORMER_ATTENTION_SCHEMA " -> Tensor");
  m.def("attention_explain" TILEFORMER_ATTENTION_SCHEMA " -> Tensor");
  m.def("measure_peak(int dtype) -> float");
}

STABLE_TORCH_LIBRARY_IMPL(tileformer, CPU, m) {
  m.impl("attention_forward", attention_forward_op);
  m.impl("attention_inference", attention_inference_op);
  m.impl("attention_explain", attention_explain_op);
}

STABLE_TORCH_LIBRARY_IMPL(tileformer, CompositeExplicitAutograd, m) {
  m.impl("measure_peak", measure_peak_op);
  m.impl("attention_forward", refuse_device);
  m.impl("attention_inference", refuse_device);
  m.impl("attention_explain", refuse_device);
}

}  // namespace tileformer::torch_binding
