#include "sdpa_override.h"

#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/inductor/aoti_torch/generated/c_shim_cpu.h>
#include <torch/csrc/stable/library.h>

#include <atomic>
#include <cmath>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>
#include <tuple>

#include "attention_backward_call.h"
#include "attention_call.h"
#include "status_error.h"
#include "torch_executor.h"

namespace tileformer::torch_binding {
namespace {

using torch::stable::detail::StableLibrary;

std::atomic<std::int64_t> calls_here{0}, calls_native{0}, backward_here{0}, backward_native{0};

AtenTensorHandle* handle_or_null(const std::optional<Tensor>& tensor, AtenTensorHandle* storage) {
  if (!tensor.has_value() || !tensor->defined()) return nullptr;
  *storage = tensor->get();
  return storage;
}

// torch's kernel writes a row that sees nothing as lse 0, and so do we: its backward and its users count on
// it.
void replace_minus_infinity(const TensorView& lse) {
  for (std::int64_t b = 0; b < lse.shape[0]; ++b)
    for (std::int64_t h = 0; h < lse.shape[1]; ++h)
      for (std::int64_t s = 0; s < lse.shape[2]; ++s) {
        float& x = static_cast<float*>(lse.data)[b * lse.stride[0] + h * lse.stride[1] + s * lse.stride[2]];
        if (x == -std::numeric_limits<float>::infinity()) x = 0;
      }
}

void set_arguments(AttentionCall& call, bool is_causal, const std::optional<Tensor>& attn_mask,
                   std::optional<double> scale) {
  call.bind();
  if (attn_mask.has_value() && attn_mask->defined())
    call.args.attn_mask = broadcast_view_of(*attn_mask, "attn_mask");
  call.args.causal = is_causal ? Causal::top_left : Causal::none;
  if (scale) call.args.scale = *scale;
}

// Fails for what the plan does not support, throws nothing.
Status forward_here(const Tensor& query, const Tensor& key, const Tensor& value, bool is_causal,
                    const std::optional<Tensor>& attn_mask, std::optional<double> scale, Tensor* out,
                    Tensor* lse) {
  AttentionCall call(query, key, value);
  set_arguments(call, is_causal, attn_mask, scale);
  AttentionArgs& args = call.args;
  *out = call.allocate_out();
  // Compiled graphs count on [batch, seq, heads] storage seen as [batch, heads, seq].
  const auto& q = args.query.shape;
  *lse = empty_in_order({q[0], q[1], q[2]}, {0, 2, 1}, DType::f32);
  args.lse = view_of(*lse, "lse");
  TorchExecutor executor;
  Status status = attention_forward(args, executor);
  if (status && args.attn_mask) replace_minus_infinity(args.lse);
  return status;
}

std::tuple<Tensor, Tensor> forward(const Tensor& query, const Tensor& key, const Tensor& value,
                                   double dropout_p, bool is_causal, const std::optional<Tensor>& attn_mask,
                                   std::optional<double> scale) {
  Isa isa;
  raise_if_failed(
      active_isa(&isa));  // a forced ISA that is not there is an error, never torch's kernel in silence
  if (query.scalar_type() != torch::headeronly::ScalarType::Double && dropout_p == 0) {
    Tensor out, lse;
    if (forward_here(query, key, value, is_causal, attn_mask, scale, &out, &lse)) {
      calls_here.fetch_add(1, std::memory_order_relaxed);
      return {out, lse};
    }
  }
  calls_native.fetch_add(1, std::memory_order_relaxed);
  AtenTensorHandle mask = nullptr, out = nullptr, lse = nullptr;
  TORCH_ERROR_CODE_CHECK(aoti_torch_cpu__scaled_dot_product_flash_attention_for_cpu(
      query.get(), key.get(), value.get(), dropout_p, is_causal, handle_or_null(attn_mask, &mask),
      scale ? &*scale : nullptr, &out, &lse));
  return {Tensor(out), Tensor(lse)};
}

std::tuple<Tensor, Tensor, Tensor> backward(const Tensor& grad_out, const Tensor& query, const Tensor& key,
                                            const Tensor& value, const Tensor& out, const Tensor& lse,
                                            double dropout_p, bool is_causal,
                                            const std::optional<Tensor>& attn_mask,
                                            std::optional<double> scale) {
  Isa isa;
  raise_if_failed(active_isa(&isa));
  if (query.scalar_type() != torch::headeronly::ScalarType::Double && dropout_p == 0) {
    AttentionCall call(query, key, value);
    set_arguments(call, is_causal, attn_mask, scale);
    call.set_results(out, lse);
    AttentionBackwardCall gradients(call, grad_out, std::nullopt, AttentionBackwardCall::kInputs);
    if (gradients.try_run()) {
      backward_here.fetch_add(1, std::memory_order_relaxed);
      return {gradients.gradient(0), gradients.gradient(1), gradients.gradient(2)};
    }
  }
  backward_native.fetch_add(1, std::memory_order_relaxed);
  AtenTensorHandle mask = nullptr, grad_query = nullptr, grad_key = nullptr, grad_value = nullptr;
  TORCH_ERROR_CODE_CHECK(aoti_torch_cpu__scaled_dot_product_flash_attention_for_cpu_backward(
      grad_out.get(), query.get(), key.get(), value.get(), out.get(), lse.get(), dropout_p, is_causal,
      handle_or_null(attn_mask, &mask), scale ? &*scale : nullptr, &grad_query, &grad_key, &grad_value));
  return {Tensor(grad_query), Tensor(grad_key), Tensor(grad_value)};
}

// Alive while the override is on. Not destroyed at exit: torch's dispatcher may be gone by then.
StableLibrary* registration = nullptr;
std::mutex registration_mutex;

}  // namespace

void set_sdpa_override(bool on) {
  const std::lock_guard<std::mutex> lock(registration_mutex);
  if (on && registration == nullptr) {
    auto library = std::make_unique<StableLibrary>(StableLibrary::Kind::IMPL, "aten", "CPU", "tileformer", 0);
    library->impl("_scaled_dot_product_flash_attention_for_cpu", TORCH_BOX(&forward));
    library->impl("_scaled_dot_product_flash_attention_for_cpu_backward", TORCH_BOX(&backward));
    registration = library.release();
  } else if (!on && registration != nullptr) {
    delete registration;  // the dispatcher puts torch's kernel back
    registration = nullptr;
  }
}

bool sdpa_override() {
  const std::lock_guard<std::mutex> lock(registration_mutex);
  return registration != nullptr;
}

SdpaCounts sdpa_counts() {
  return {calls_here.load(), calls_native.load(), backward_here.load(), backward_native.load()};
}

}  // namespace tileformer::torch_binding
