#include "attention_call.h"

#include <torch/csrc/stable/ops.h>

#include <stdexcept>

#include "optional_view.h"
#include "status_error.h"
#include "torch_executor.h"

namespace tileformer::torch_binding {

Causal to_causal(std::int64_t code) {
  if (code < 0 || code > 2)
    throw std::invalid_argument("causal is " + std::to_string(code) +
                                "; allowed are 0 (none), 1 (top-left), 2 (bottom-right)");
  return static_cast<Causal>(code);
}

namespace {

using torch::stable::detail::to;

void need_rank_4(const TensorView& view, const char* name) {
  if (view.rank != 4)
    throw std::invalid_argument(std::string(name) + " has " + std::to_string(view.rank) +
                                " dimensions; needed are 4, [batch, heads, seq, dim]");
}

}  // namespace

AttentionCall::AttentionCall(StableIValue* stack)
    : query_(to<Tensor>(stack[0])),
      key_(to<Tensor>(stack[1])),
      value_(to<Tensor>(stack[2])),
      attn_mask_(to<std::optional<Tensor>>(stack[3])),
      sinks_(to<std::optional<Tensor>>(stack[9])),
      alibi_slopes_(to<std::optional<Tensor>>(stack[10])),
      key_range_(to<std::optional<Tensor>>(stack[11])),
      query_offset_(to<std::optional<Tensor>>(stack[12])),
      cu_seqlens_query_(to<std::optional<Tensor>>(stack[13])),
      cu_seqlens_key_(to<std::optional<Tensor>>(stack[14])),
      dropout_state_(to<std::optional<Tensor>>(stack[16])) {
  if (const auto scale = to<std::optional<double>>(stack[4])) args.scale = *scale;
  args.causal = to_causal(to<std::int64_t>(stack[5]));
  args.window_left = to<std::int64_t>(stack[6]);
  args.window_right = to<std::int64_t>(stack[7]);
  args.softcap = to<double>(stack[8]);
  args.dropout_p = static_cast<float>(to<double>(stack[15]));
}

AttentionCall::AttentionCall(const Tensor& query, const Tensor& key, const Tensor& value)
    : query_(query), key_(key), value_(value) {}

void AttentionCall::bind() {
  for (Tensor* input : {&query_, &key_, &value_})
    if (!has_unit_last_stride(*input)) *input = torch::stable::contiguous(*input);
  args.query = view_of(query_, "query");
  args.key = view_of(key_, "key");
  args.value = view_of(value_, "value");
  need_rank_4(args.query, "query");
  need_rank_4(args.key, "key");
  need_rank_4(args.value, "value");
  if (given(attn_mask_)) args.attn_mask = broadcast_view_of(*attn_mask_, "attn_mask");
  args.sinks = optional_view(sinks_, "sinks");
  args.alibi_slopes = optional_view(alibi_slopes_, "alibi_slopes");
  args.key_range = optional_view(key_range_, "key_range");
  args.query_offset = optional_view(query_offset_, "query_offset");
  args.cu_seqlens_query = optional_view(cu_seqlens_query_, "cu_seqlens_query");
  args.cu_seqlens_key = optional_view(cu_seqlens_key_, "cu_seqlens_key");
  if (given(dropout_state_)) {
    const TensorView state = view_of(*dropout_state_, "dropout_state");
    if (state.dtype != DType::i64 || state.rank != 1 || state.shape[0] != 2)
      throw std::invalid_argument("dropout_state has to be int64 [2]: seed and offset");
    const auto* words = static_cast<const std::int64_t*>(state.data);
    args.dropout_seed = static_cast<std::uint64_t>(words[0]);
    args.dropout_offset = static_cast<std::uint64_t>(words[state.stride[0]]);
  } else if (args.dropout_p > 0) {
    throw std::invalid_argument("dropout_p is " + std::to_string(args.dropout_p) +
                                ", so dropout_state (int64 [2]: seed and offset) is needed");
  }
}

Tensor AttentionCall::allocate_out() {
  const auto& q = args.query.shape;
  Tensor out = empty_like_layout({q[0], q[1], q[2], args.value.shape[3]}, query_);
  args.out = view_of(out, "out");
  return out;
}

Tensor AttentionCall::allocate_lse() {
  const auto& q = args.query.shape;
  const DType dtype = args.query.dtype == DType::f64 ? DType::f64 : DType::f32;
  Tensor lse = empty_in_order({q[0], q[1], q[2]}, {0, 1, 2}, dtype);
  args.lse = view_of(lse, "lse");
  return lse;
}

void AttentionCall::set_results(const Tensor& out, const Tensor& lse) {
  out_ = has_unit_last_stride(out) ? out : torch::stable::contiguous(out);
  lse_ = lse;
  args.out = view_of(out_, "out");
  args.lse = view_of(lse_, "lse");
}

void AttentionCall::run() {
  TorchExecutor executor;
  raise_if_failed(attention_forward(args, executor));
}

std::string AttentionCall::copied() const {
  std::string names;
  const auto note = [&names](const Tensor& tensor, const char* name) {
    if (!has_unit_last_stride(tensor)) names += (names.empty() ? "" : ", ") + std::string(name);
  };
  note(query_, "query");
  note(key_, "key");
  note(value_, "value");
  return names;
}

}  // namespace tileformer::torch_binding
