#include "ops/moe/permute/check.h"

#include <string>

#include "base/check_view.h"
#include "base/describe.h"
#include "ops/moe/dispatch.h"

namespace tileformer::permute_op {
namespace {

constexpr const char* kTokensLayout = "[tokens, hidden]";
constexpr const char* kRowsLayout = "[rows, hidden]";
constexpr const char* kSlotsLayout = "[tokens, k]";

Status check_floating(const char* argument, const TensorView& view, int rank, const char* layout) {
  if (Status s = check_view(argument, view, rank, layout); !s) return s;
  if (is_floating(view.dtype)) return Status::ok();
  return wrong(argument, std::string("dtype ") + name_of(view.dtype),
               "float32, float16, bfloat16 or float64");
}

// [count, hidden] in the dtype of `like`, unit stride in the last dimension.
Status check_rows(const char* argument, const TensorView& view, std::int64_t count, const TensorView& like,
                  const char* layout) {
  const TensorView expected(nullptr, like.dtype, {count, like.shape[1]}, {});
  if (Status s = check_like(argument, view, like.dtype, expected, layout); !s) return s;
  return check_unit_stride(argument, view);
}

Status check_dense(const char* argument, const TensorView& view, std::int64_t count, const char* layout) {
  const TensorView expected(nullptr, DType::i64, {count}, {});
  if (Status s = check_like(argument, view, DType::i64, expected, layout); !s) return s;
  return check_unit_stride(argument, view);
}

Status check_unpermuted(const TensorView& rows, const TensorView& source, const TensorView& weights) {
  if (Status s = check_floating("rows", rows, 2, kRowsLayout); !s) return s;
  if (Status s = check_unit_stride("rows", rows); !s) return s;
  const TensorView expected(nullptr, DType::i64, {rows.shape[0]}, {});
  if (Status s = check_like("source", source, DType::i64, expected, "[rows]"); !s) return s;
  if (Status s = check_floating("weights", weights, 2, kSlotsLayout); !s) return s;
  if (weights.dtype == DType::f64 && rows.dtype != DType::f64)
    return wrong("weights", "dtype float64",
                 std::string("float32, float16 or bfloat16 with rows of ") + name_of(rows.dtype));
  std::int64_t pairs = 0;  // a broadcast view may have more than its memory
  if (__builtin_mul_overflow(weights.shape[0], weights.shape[1], &pairs))
    return wrong("weights", "shape " + describe_shape(weights), "a number of pairs that fits in 64 bits");
  return Status::ok();
}

}  // namespace

Status check(const PermuteTokensArgs& args) {
  const TensorView& tokens = args.tokens;
  if (Status s = check_floating("tokens", tokens, 2, kTokensLayout); !s) return s;
  if (Status s = check_unit_stride("tokens", tokens); !s) return s;
  if (Status s = check_view("counts", args.counts, 1, "[num_experts]"); !s) return s;
  if (Status s = moe::check_dispatch(args.experts, args.counts.shape[0]); !s) return s;
  const TensorView slots(nullptr, DType::i64, {tokens.shape[0], args.experts.shape[1]}, {});
  if (Status s = check_shape("experts", args.experts, slots, kSlotsLayout); !s) return s;
  const std::int64_t pairs = args.experts.elements();
  if (Status s = check_rows("rows", args.rows, pairs, tokens, "[tokens * k, hidden]"); !s) return s;
  if (Status s = check_distinct("rows", args.rows); !s) return s;
  if (Status s = check_dense("counts", args.counts, args.counts.shape[0], "[num_experts]"); !s) return s;
  return check_dense("source", args.source, pairs, "[tokens * k]");
}

Status check(const UnpermuteTokensArgs& args) {
  if (Status s = check_unpermuted(args.rows, args.source, args.weights); !s) return s;
  if (Status s = check_rows("out", args.out, args.weights.shape[0], args.rows, kTokensLayout); !s) return s;
  return check_distinct("out", args.out);
}

Status check(const UnpermuteTokensBackwardArgs& args) {
  if (Status s = check_unpermuted(args.rows, args.source, args.weights); !s) return s;
  const std::int64_t tokens = args.weights.shape[0];
  if (Status s = check_rows("grad_out", args.grad_out, tokens, args.rows, kTokensLayout); !s) return s;
  if (args.grad_rows) {
    if (Status s = check_rows("grad_rows", args.grad_rows, args.rows.shape[0], args.rows, kRowsLayout); !s)
      return s;
    if (Status s = check_distinct("grad_rows", args.grad_rows); !s) return s;
  }
  if (!args.grad_weights) return Status::ok();
  if (Status s =
          check_like("grad_weights", args.grad_weights, args.weights.dtype, args.weights, kSlotsLayout);
      !s)
    return s;
  return check_distinct("grad_weights", args.grad_weights);
}

}  // namespace tileformer::permute_op
