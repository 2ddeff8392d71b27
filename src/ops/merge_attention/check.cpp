#include "ops/merge_attention/check.h"

#include <string>

#include "base/check_view.h"
#include "base/describe.h"

namespace tileformer::merge_attention {
namespace {

constexpr const char* kOutLayout = "[batch, heads, seq, dim_v]";
constexpr const char* kLseLayout = "[batch, heads, seq]";

std::string entry(const char* argument, std::size_t part) {
  return std::string(argument) + "[" + std::to_string(part) + "]";
}

Status check_out(const TensorView& out) {
  if (Status s = check_view("out", out, 4, kOutLayout); !s) return s;
  if (!is_floating(out.dtype))
    return wrong("out", std::string("dtype ") + name_of(out.dtype), "float32, float16, bfloat16 or float64");
  if (Status s = check_unit_stride("out", out); !s) return s;
  return check_distinct("out", out);
}

Status check_part(const MergeAttentionArgs& args, std::size_t part, const TensorView& lse_like) {
  const TensorView& out = args.part_out[part];
  const std::string name = entry("part_out", part), lse_name = entry("part_lse", part);
  if (out && (!is_floating(out.dtype) || (out.dtype == DType::f64 && args.out.dtype != DType::f64)))
    return wrong(name.c_str(), std::string("dtype ") + name_of(out.dtype),
                 std::string("float32, float16 or bfloat16 with out of ") + name_of(args.out.dtype));
  if (Status s = check_like(name.c_str(), out, out.dtype, args.out, kOutLayout); !s) return s;
  if (Status s = check_unit_stride(name.c_str(), out); !s) return s;
  return check_like(lse_name.c_str(), args.part_lse[part], lse_like.dtype, lse_like, kLseLayout);
}

}  // namespace

Status check(const MergeAttentionArgs& args) {
  const std::size_t parts = args.part_out.size();
  if (parts < 1 || parts > kMaxParts)
    return wrong("part_out", std::to_string(parts) + " parts", "1 to " + std::to_string(kMaxParts));
  if (args.part_lse.size() != parts)
    return wrong("part_lse", std::to_string(args.part_lse.size()) + " parts",
                 std::to_string(parts) + ", as many as part_out has");
  if (Status s = check_out(args.out); !s) return s;
  const auto& shape = args.out.shape;
  const TensorView lse_like(nullptr, args.out.dtype == DType::f64 ? DType::f64 : DType::f32,
                            {shape[0], shape[1], shape[2]}, {});
  for (std::size_t p = 0; p < parts; ++p)
    if (Status s = check_part(args, p, lse_like); !s) return s;
  if (!args.lse) return Status::ok();
  if (Status s = check_like("lse", args.lse, lse_like.dtype, lse_like, kLseLayout); !s) return s;
  return check_distinct("lse", args.lse);
}

}  // namespace tileformer::merge_attention
