// torch.ops.tileformer.attention_paged: attention over keys and values that lie in the pages of a pool.
//
// attention_paged          -> (out, lse); lse is empty unless return_lse. No autograd formula: for inference.
//                             query may be [tokens, heads, dim] with cu_seqlens_query: views made in Python
//                             would cost as much as a short call.
// attention_paged_explain  -> the plan, as explanation.h says; computes nothing.
#include <torch/csrc/stable/library.h>

#include <cstdint>
#include <optional>
#include <stdexcept>

#include "attention_call.h"
#include "explanation.h"
#include "optional_view.h"
#include "status_error.h"
#include "torch_executor.h"

namespace tileformer::torch_binding {
namespace {

using torch::stable::detail::from;
using torch::stable::detail::to;

// In the order in which PagedAttentionCall reads them.
#define TILEFORMER_PAGED_ARGUMENTS                                                                     \
  "Tensor query, Tensor key_pages, Tensor value_pages, Tensor block_table, Tensor key_lengths, "       \
  "Tensor? key_scale=None, Tensor? value_scale=None, Tensor? cu_seqlens_query=None, "                  \
  "Tensor? attn_mask=None, float? scale=None, int causal=0, int window_left=-1, int window_right=-1, " \
  "float softcap=0.0, Tensor? sinks=None, Tensor? alibi_slopes=None, Tensor? key_range=None, "         \
  "Tensor? query_offset=None, bool return_lse=False"

class PagedAttentionCall {
 public:
  // Takes over the arguments on torch's stack.
  explicit PagedAttentionCall(StableIValue* stack)
      : query_(to<Tensor>(stack[0])),
        key_pages_(to<Tensor>(stack[1])),
        value_pages_(to<Tensor>(stack[2])),
        block_table_(to<Tensor>(stack[3])),
        key_lengths_(to<Tensor>(stack[4])),
        key_scale_(to<std::optional<Tensor>>(stack[5])),
        value_scale_(to<std::optional<Tensor>>(stack[6])),
        cu_seqlens_query_(to<std::optional<Tensor>>(stack[7])),
        attn_mask_(to<std::optional<Tensor>>(stack[8])),
        sinks_(to<std::optional<Tensor>>(stack[14])),
        alibi_slopes_(to<std::optional<Tensor>>(stack[15])),
        key_range_(to<std::optional<Tensor>>(stack[16])),
        query_offset_(to<std::optional<Tensor>>(stack[17])),
        return_lse_(to<bool>(stack[18])) {
    if (const auto scale = to<std::optional<double>>(stack[9])) args_.scale = *scale;
    args_.causal = to_causal(to<std::int64_t>(stack[10]));
    args_.window_left = to<std::int64_t>(stack[11]);
    args_.window_right = to<std::int64_t>(stack[12]);
    args_.softcap = to<double>(stack[13]);
  }

  // Fills args with views and allocates the results. A pool is never copied, only a query whose rows are not
  // adjacent in memory.
  void bind() {
    if (copies_query()) query_ = torch::stable::contiguous(query_);
    args_.query = query_view();
    args_.key = view_of(key_pages_, "key_pages");
    args_.value = view_of(value_pages_, "value_pages");
    need_rank_4(args_.key, "key_pages", "[pages, kv_heads, page_size, dim]");
    need_rank_4(args_.value, "value_pages", "[pages, kv_heads, page_size, dim_v]");
    args_.block_table = view_of(block_table_, "block_table");
    args_.key_lengths = view_of(key_lengths_, "key_lengths");
    args_.key_scale = optional_view(key_scale_, "key_scale");
    args_.value_scale = optional_view(value_scale_, "value_scale");
    args_.cu_seqlens_query = optional_view(cu_seqlens_query_, "cu_seqlens_query");
    if (given(attn_mask_)) args_.attn_mask = broadcast_view_of(*attn_mask_, "attn_mask");
    args_.sinks = optional_view(sinks_, "sinks");
    args_.alibi_slopes = optional_view(alibi_slopes_, "alibi_slopes");
    args_.key_range = optional_view(key_range_, "key_range");
    args_.query_offset = optional_view(query_offset_, "query_offset");

    const auto& q = args_.query.shape;
    const std::int64_t dim_v = args_.value.shape[3];
    const DType statistics = args_.query.dtype == DType::f64 ? DType::f64 : DType::f32;
    if (tokens_first_) {
      out = empty_dense({q[2], q[1], dim_v}, args_.query.dtype);
      args_.out = batch_of_one(view_of(out, "out"));
    } else {
      out = empty_like_layout({q[0], q[1], q[2], dim_v}, query_);
      args_.out = view_of(out, "out");
    }
    if (!return_lse_) {
      lse = empty_dense({0}, statistics);
      return;
    }
    lse = tokens_first_ ? empty_dense({q[1], q[2]}, statistics) : empty_dense({q[0], q[1], q[2]}, statistics);
    args_.lse = TensorView::dense(lse.mutable_data_ptr(), statistics, {q[0], q[1], q[2]});
  }

  void run() {
    TorchExecutor executor;
    raise_if_failed(attention_forward(args_, executor));
  }

  std::string plan() const {
    AttentionPlan plan;
    raise_if_failed(plan_attention(args_, TorchExecutor().threads(), &plan));
    return plan.to_string();
  }

  bool copies_query() const { return !has_unit_last_stride(query_); }

  Tensor out, lse;

 private:
  // [tokens, heads, dim] as [1, heads, tokens, dim].
  static TensorView batch_of_one(const TensorView& view) {
    TensorView batch(view.data, view.dtype, {1, view.shape[1], view.shape[0], view.shape[2]},
                     {0, view.stride[1], view.stride[0], view.stride[2]});
    return batch;
  }

  TensorView query_view() {
    const TensorView view = view_of(query_, "query");
    tokens_first_ = view.rank == 3 && given(cu_seqlens_query_);
    if (tokens_first_) return batch_of_one(view);
    need_rank_4(view, "query", "[batch, heads, seq, dim]; or [tokens, heads, dim] with cu_seqlens_query");
    return view;
  }

  static void need_rank_4(const TensorView& view, const char* name, const char* layout) {
    if (view.rank != 4)
      throw std::invalid_argument(std::string(name) + " has " + std::to_string(view.rank) +
                                  " dimensions; needed are 4, " + layout);
  }

  AttentionArgs args_;
  Tensor query_, key_pages_, value_pages_, block_table_, key_lengths_;
  std::optional<Tensor> key_scale_, value_scale_, cu_seqlens_query_, attn_mask_, sinks_, alibi_slopes_,
      key_range_, query_offset_;
  bool return_lse_, tokens_first_ = false;
};

void attention_paged_op(StableIValue* stack, std::uint64_t, std::uint64_t) {
  PagedAttentionCall call(stack);
  call.bind();
  call.run();
  stack[0] = from(call.out);
  stack[1] = from(call.lse);
}

void attention_paged_explain_op(StableIValue* stack, std::uint64_t, std::uint64_t) {
  PagedAttentionCall call(stack);
  const std::string copied = call.copies_query() ? "query" : "";
  call.bind();
  stack[0] = from(explanation(call.plan(), copied));
}

// Every device and layout but a dense CPU tensor ends here.
void refuse_device(StableIValue* stack, std::uint64_t, std::uint64_t) {
  const PagedAttentionCall call(stack);
  throw std::invalid_argument("all tensors have to be dense and on the CPU: tileformer runs on CPUs only");
}

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(tileformer, m) {
  m.def("attention_paged(" TILEFORMER_PAGED_ARGUMENTS ") -> (Tensor out, Tensor lse)");
  m.def("attention_paged_explain(" TILEFORMER_PAGED_ARGUMENTS ") -> Tensor");
}

STABLE_TORCH_LIBRARY_IMPL(tileformer, CPU, m) {
  m.impl("attention_paged", attention_paged_op);
  m.impl("attention_paged_explain", attention_paged_explain_op);
}

STABLE_TORCH_LIBRARY_IMPL(tileformer, CompositeExplicitAutograd, m) {
  m.impl("attention_paged", refuse_device);
  m.impl("attention_paged_explain", refuse_device);
}

}  // namespace tileformer::torch_binding
