#include "ops/attention/check_parts.h"

namespace tileformer::attention {
namespace {

constexpr const char* kQueryLayout = "[batch, heads, seq_q, dim]";
constexpr const char* kKeyLayout = "[batch, kv_heads, seq_k, dim]";
constexpr const char* kValueLayout = "[batch, kv_heads, seq_k, dim_v]";
constexpr const char* kOutLayout = "[batch, heads, seq_q, dim_v]";
constexpr const char* kLseLayout = "[batch, heads, seq_q]";

Status check_head_dim(const char* argument, std::int64_t dim) {
  if (dim >= 1 && dim <= kMaxHeadDim) return Status::ok();
  const std::string message = std::string(argument) + ": got head_dim " + std::to_string(dim) +
                              ", expected 1 to " + std::to_string(kMaxHeadDim);
  return dim < 1 ? Status::invalid(message) : Status::unsupported(message);
}

Status check_same_dtype(const char* argument, DType dtype, DType query) {
  if (dtype == query) return Status::ok();
  return wrong(argument, std::string("dtype ") + name_of(dtype),
               std::string(name_of(query)) + ", the dtype of query");
}

// Shapes of the tensors that follow from query: only their ranks and sizes matter.
TensorView shaped(std::int64_t a, std::int64_t b, std::int64_t c, std::int64_t d) {
  return TensorView(nullptr, DType::f32, {a, b, c, d}, {});
}

Status check_inputs(const AttentionArgs& args) {
  const TensorView &q = args.query, &k = args.key, &v = args.value;
  if (Status s = check_view("query", q, 4, kQueryLayout); !s) return s;
  if (Status s = check_view("key", k, 4, kKeyLayout); !s) return s;
  if (Status s = check_view("value", v, 4, kValueLayout); !s) return s;
  if (!is_floating(q.dtype)) {
    return wrong("query", std::string("dtype ") + name_of(q.dtype), "float32, float16, bfloat16 or float64");
  }
  if (!args.block_table) {
    if (Status s = check_same_dtype("key", k.dtype, q.dtype); !s) return s;
    if (Status s = check_same_dtype("value", v.dtype, q.dtype); !s) return s;
  }
  if (Status s = check_head_dim("query", q.shape[3]); !s) return s;
  if (Status s = check_head_dim("value", v.shape[3]); !s) return s;

  const std::int64_t batch = args.block_table ? k.shape[0] : q.shape[0];
  if (Status s = check_shape("key", k, shaped(batch, k.shape[1], k.shape[2], q.shape[3]), kKeyLayout); !s) {
    return s;
  }
  if (Status s =
          check_shape("value", v, shaped(k.shape[0], k.shape[1], k.shape[2], v.shape[3]), kValueLayout);
      !s) {
    return s;
  }
  const std::int64_t heads = q.shape[1], kv_heads = k.shape[1];
  if (kv_heads == 0 ? heads != 0 : heads % kv_heads != 0) {
    return wrong("key",
                 std::to_string(kv_heads) + " kv_heads for " + std::to_string(heads) + " heads of query",
                 "kv_heads that divide heads");
  }
  if (Status s = check_unit_stride("query", q); !s) return s;
  if (Status s = check_unit_stride("key", k); !s) return s;
  return check_unit_stride("value", v);
}

Status check_out(const AttentionArgs& args) {
  const TensorView &q = args.query, &out = args.out;
  if (Status s = check_view("out", out, 4, kOutLayout); !s) return s;
  if (Status s = check_same_dtype("out", out.dtype, q.dtype); !s) return s;
  const TensorView shape = shaped(q.shape[0], q.shape[1], q.shape[2], args.value.shape[3]);
  if (Status s = check_shape("out", out, shape, kOutLayout); !s) return s;
  if (Status s = check_unit_stride("out", out); !s) return s;
  return check_distinct("out", out);
}

Status check_lse(const AttentionArgs& args) {
  const TensorView &q = args.query, &lse = args.lse;
  if (!lse) return Status::ok();
  if (Status s = check_view("lse", lse, 3, kLseLayout); !s) return s;
  const DType expected = q.dtype == DType::f64 ? DType::f64 : DType::f32;
  if (lse.dtype != expected) {
    return wrong("lse", std::string("dtype ") + name_of(lse.dtype),
                 std::string(name_of(expected)) + " with a query of " + name_of(q.dtype));
  }
  const TensorView shape(nullptr, DType::f32, {q.shape[0], q.shape[1], q.shape[2]}, {});
  if (Status s = check_shape("lse", lse, shape, kLseLayout); !s) return s;
  return check_distinct("lse", lse);
}

}  // namespace

Status check_tensors(const AttentionArgs& args, Problem* problem) {
  if (Status s = check_inputs(args); !s) return s;
  if (Status s = check_out(args); !s) return s;
  if (Status s = check_lse(args); !s) return s;
  problem->sequences = args.query.shape[0];
  problem->heads = args.query.shape[1];
  // Without query heads there is nothing to do, however many heads key and value have.
  problem->kv_heads = problem->heads == 0 ? 0 : args.key.shape[1];
  problem->group = problem->heads == 0 ? 1 : problem->heads / problem->kv_heads;
  problem->total_queries = args.query.shape[2];
  problem->total_keys = args.key.shape[2];
  problem->dim = args.query.shape[3];
  problem->dim_v = args.value.shape[3];
  problem->dtype = args.query.dtype;
  problem->keys_bf16 = args.key.dtype == DType::bf16 && args.value.dtype == DType::bf16;
  return Status::ok();
}

}  // namespace tileformer::attention
