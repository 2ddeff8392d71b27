// Every argument of the backward. Messages as in check_parts.h.
#include "ops/attention/backward/plan.h"
#include "ops/attention/check_parts.h"

namespace tileformer::attention {
namespace {

Status check_gradient(const char* argument, const TensorView& view, const TensorView& like,
                      const char* layout) {
  if (!view) return Status::ok();
  if (Status s = check_like(argument, view, like.dtype, like, layout); !s) return s;
  if (Status s = check_unit_stride(argument, view); !s) return s;
  return check_distinct(argument, view);
}

Status check_mask_gradient(const AttentionBackwardArgs& args, DType statistics) {
  const TensorView &grad = args.grad_mask, &mask = args.forward.attn_mask;
  if (!grad) return Status::ok();
  if (!mask || !is_floating(mask.dtype))
    return wrong("grad_mask", "a tensor", "none, as attn_mask is not a floating tensor");
  if (Status s = check_view("grad_mask", grad, 4, "in the shape of attn_mask"); !s) return s;
  if (grad.dtype != statistics)
    return wrong("grad_mask", std::string("dtype ") + name_of(grad.dtype), name_of(statistics));
  for (int i = 0; i < 4; ++i) {
    const bool summed = grad.shape[i] == 1 && mask.stride[i] == 0;
    if (grad.shape[i] != mask.shape[i] && !summed)
      return wrong("grad_mask", "shape " + describe_shape(grad),
                   describe_shape(mask) + ", the shape of attn_mask (1 where that has stride 0)");
  }
  return check_distinct("grad_mask", grad);
}

Status check_sink_gradient(const AttentionBackwardArgs& args, DType statistics) {
  const TensorView& grad = args.grad_sinks;
  if (!grad) return Status::ok();
  if (!args.forward.sinks) return wrong("grad_sinks", "a tensor", "none, as there are no sinks");
  TensorView like = args.forward.sinks;
  if (Status s = check_like("grad_sinks", grad, statistics, like, "[heads]"); !s) return s;
  return check_distinct("grad_sinks", grad);
}

}  // namespace

Status check(const AttentionBackwardArgs& args, Problem* problem) {
  const AttentionArgs& f = args.forward;
  if (Status s = check(f, problem); !s) return s;
  if (problem->paged()) return wrong("block_table", "a tensor", "nothing: pages have no gradient");
  if (!f.lse) return wrong("lse", "none", "the lse that the forward returned");
  const DType statistics = problem->dtype == DType::f64 ? DType::f64 : DType::f32;
  if (Status s = check_like("grad_out", args.grad_out, f.out.dtype, f.out, "[batch, heads, seq_q, dim_v]");
      !s)
    return s;
  if (Status s = check_unit_stride("grad_out", args.grad_out); !s) return s;
  if (args.grad_lse)
    if (Status s = check_like("grad_lse", args.grad_lse, statistics, f.lse, "[batch, heads, seq_q]"); !s)
      return s;
  if (Status s = check_gradient("grad_query", args.grad_query, f.query, "[batch, heads, seq_q, dim]"); !s)
    return s;
  if (Status s = check_gradient("grad_key", args.grad_key, f.key, "[batch, kv_heads, seq_k, dim]"); !s)
    return s;
  if (Status s = check_gradient("grad_value", args.grad_value, f.value, "[batch, kv_heads, seq_k, dim_v]");
      !s)
    return s;
  if (Status s = check_mask_gradient(args, statistics); !s) return s;
  return check_sink_gradient(args, statistics);
}

}  // namespace tileformer::attention
