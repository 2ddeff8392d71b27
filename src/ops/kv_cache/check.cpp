#include "ops/kv_cache/check.h"

#include <algorithm>
#include <string>
#include <vector>

#include "base/check_view.h"
#include "base/describe.h"
#include "ops/kv_cache/limits.h"

namespace tileformer::kv_cache {
namespace {

std::string at(std::int64_t index) { return " at [" + std::to_string(index) + "]"; }

Status check_dtype(const char* argument, DType dtype, bool codes_too) {
  if (dtype == DType::f32 || dtype == DType::f16 || dtype == DType::bf16) return Status::ok();
  if (codes_too && is_quantized(dtype)) return Status::ok();
  return wrong(argument, std::string("dtype ") + name_of(dtype),
               codes_too ? "float32, float16, bfloat16, int8, float8_e4m3fn or float8_e5m2"
                         : "float32, float16 or bfloat16");
}

Status check_rows(const char* argument, const TensorView& view, const char* layout) {
  if (Status s = check_view(argument, view, 3, layout); !s) return s;
  if (Status s = check_dtype(argument, view.dtype, false); !s) return s;
  if (view.shape[2] < 1 || view.shape[2] > kMaxHeadDim)
    return wrong(argument, "shape " + describe_shape(view),
                 "rows of 1 to " + std::to_string(kMaxHeadDim) + " elements");
  return check_unit_stride(argument, view);
}

// The pool that takes the rows of `from`, called from_name.
Status check_pages(const char* argument, const TensorView& pages, const char* from_name,
                   const TensorView& from) {
  if (Status s = check_view(argument, pages, 4, "[pages, kv_heads, page_size, dim]"); !s) return s;
  if (Status s = check_dtype(argument, pages.dtype, true); !s) return s;
  if (pages.shape[1] != from.shape[1] || pages.shape[3] != from.shape[2] || pages.shape[2] < 1)
    return wrong(argument, "shape " + describe_shape(pages),
                 "[pages, " + std::to_string(from.shape[1]) + ", page_size, " +
                     std::to_string(from.shape[2]) + "] for a " + from_name + " of shape " +
                     describe_shape(from));
  if (Status s = check_unit_stride(argument, pages); !s) return s;
  return check_distinct(argument, pages);
}

Status check_scale(const char* argument, const TensorView& scale, const TensorView& pages) {
  const std::string dtype = name_of(pages.dtype);
  if (!is_quantized(pages.dtype))
    return scale ? wrong(argument, describe(scale), "none with pages of " + dtype) : Status::ok();
  const TensorView expected(nullptr, DType::f32, {pages.shape[0], pages.shape[1], pages.shape[2]}, {});
  const std::string allowed = describe(expected) + " with pages of " + dtype;
  if (!scale) return wrong(argument, "nothing", allowed);
  if (scale.dtype != DType::f32) return wrong(argument, describe(scale), allowed);
  if (Status s = check_view(argument, scale, 3, "[pages, kv_heads, page_size]"); !s) return s;
  if (!std::equal(&scale.shape[0], &scale.shape[3], &expected.shape[0]))
    return wrong(argument, describe(scale), allowed);
  return check_distinct(argument, scale);
}

// i64 [tokens], each from lowest to below limit.
Status check_indices(const char* argument, const TensorView& view, std::int64_t tokens, std::int64_t lowest,
                     std::int64_t limit, const std::string& meaning) {
  if (Status s = check_view(argument, view, 1, "[tokens]"); !s) return s;
  if (view.dtype != DType::i64 || view.shape[0] != tokens)
    return wrong(argument, describe(view), "int64 [" + std::to_string(tokens) + "], one for each token");
  const auto* index = static_cast<const std::int64_t*>(view.data);
  for (std::int64_t t = 0; t < tokens; ++t) {
    const std::int64_t i = index[t * view.stride[0]];
    if (i < lowest || i >= limit) return wrong(argument, std::to_string(i) + at(t), meaning);
  }
  return Status::ok();
}

Status check_rotary(const Rotary& rotary, const TensorView& x) {
  if (!rotary.cos && !rotary.sin && !rotary.positions) return Status::ok();
  for (const auto& [name, view] : {std::pair{"cos", &rotary.cos}, {"sin", &rotary.sin}}) {
    if (Status s = check_view(name, *view, 2, "[positions, rotary_dim / 2]"); !s) return s;
    if (view->dtype != DType::f32 && view->dtype != x.dtype)
      return wrong(name, std::string("dtype ") + name_of(view->dtype),
                   std::string("float32, or ") + name_of(x.dtype) + ", the dtype of what is rotated");
    if (view->shape[1] > x.shape[2] / 2)
      return wrong(
          name, "shape " + describe_shape(*view),
          "at most " + std::to_string(x.shape[2] / 2) + " angles for rows of " + std::to_string(x.shape[2]));
    if (Status s = check_unit_stride(name, *view); !s) return s;
  }
  if (rotary.sin.dtype != rotary.cos.dtype || rotary.sin.shape != rotary.cos.shape)
    return wrong("sin", describe(rotary.sin), describe(rotary.cos) + ", as cos");
  const std::int64_t positions = rotary.cos.shape[0];
  return check_indices("positions", rotary.positions, x.shape[0], 0, positions,
                       "0 to " + std::to_string(positions - 1) + ", a row of cos");
}

}  // namespace

Status check(const AppendArgs& args) {
  const TensorView &key = args.key, &value = args.value, &key_pages = args.key_pages;
  if (Status s = check_rows("key", key, "[tokens, kv_heads, dim]"); !s) return s;
  if (Status s = check_pages("key_pages", key_pages, "key", key); !s) return s;
  if (Status s = check_scale("key_scale", args.key_scale, key_pages); !s) return s;
  if (value || args.value_pages) {
    if (Status s = check_rows("value", value, "[tokens, kv_heads, dim_v]"); !s) return s;
    if (value.shape[0] != key.shape[0] || value.shape[1] != key.shape[1])
      return wrong("value", "shape " + describe_shape(value),
                   "the tokens and kv_heads of key, " + describe_shape(key));
    if (Status s = check_pages("value_pages", args.value_pages, "value", value); !s) return s;
    if (args.value_pages.shape[0] != key_pages.shape[0] || args.value_pages.shape[2] != key_pages.shape[2])
      return wrong("value_pages", "shape " + describe_shape(args.value_pages),
                   "the pages and page_size of key_pages, " + describe_shape(key_pages));
    if (Status s = check_scale("value_scale", args.value_scale, args.value_pages); !s) return s;
  } else if (args.value_scale) {
    return wrong("value_scale", describe(args.value_scale), "none without value");
  }
  if (Status s = check_rotary(args.rotary, key); !s) return s;
  const std::int64_t slots = key_pages.shape[0] * key_pages.shape[2];
  return check_indices("slots", args.slots, key.shape[0], -1, slots,
                       "-1 to " + std::to_string(slots - 1) + ": " + std::to_string(key_pages.shape[0]) +
                           " pages of " + std::to_string(key_pages.shape[2]));
}

Status check(const RotaryArgs& args) {
  if (Status s = check_rows("in", args.in, "[tokens, heads, dim]"); !s) return s;
  if (Status s = check_view("out", args.out, 3, "[tokens, heads, dim]"); !s) return s;
  if (args.out.dtype != args.in.dtype ||
      !std::equal(&args.out.shape[0], &args.out.shape[3], &args.in.shape[0]))
    return wrong("out", describe(args.out), describe(args.in) + ", as in");
  if (Status s = check_unit_stride("out", args.out); !s) return s;
  if (Status s = check_distinct("out", args.out); !s) return s;
  if (!args.rotary.cos) return wrong("cos", "nothing", "a tensor [positions, rotary_dim / 2]");
  return check_rotary(args.rotary, args.in);
}

Status check_copies(std::span<const TensorView> pools, std::span<const PageCopy> copies) {
  const auto in_pool = [](const TensorView& pool, std::int64_t page) {
    return page >= 0 && page < pool.shape[0];
  };
  for (const TensorView& pool : pools) {
    if (pool.rank != 3 && pool.rank != 4)
      return wrong("pools", std::to_string(pool.rank) + " dimensions",
                   "[pages, kv_heads, page_size, dim] or [pages, kv_heads, page_size]");
    if (Status s = check_view("pools", pool, pool.rank, "[pages, kv_heads, page_size, dim]"); !s) return s;
    if (Status s = check_unit_stride("pools", pool); !s) return s;
    if (Status s = check_distinct("pools", pool); !s) return s;
    for (const PageCopy& copy : copies) {
      for (std::int64_t page : {copy.from, copy.to})
        if (!in_pool(pool, page))
          return wrong("copies", "page " + std::to_string(page),
                       "0 to " + std::to_string(pool.shape[0] - 1) + ", a page of the pool");
      if (copy.rows < 0 || copy.rows > pool.shape[2])
        return wrong("copies", std::to_string(copy.rows) + " rows",
                     "0 to " + std::to_string(pool.shape[2]) + ", the rows of a page");
    }
  }
  std::vector<std::int64_t> written;
  for (const PageCopy& copy : copies) written.push_back(copy.to);
  std::sort(written.begin(), written.end());
  const auto twice = std::adjacent_find(written.begin(), written.end());
  if (twice != written.end())
    return wrong("copies", "page " + std::to_string(*twice) + " written twice", "each page once");
  for (const PageCopy& copy : copies)
    if (std::binary_search(written.begin(), written.end(), copy.from))
      return wrong("copies", "page " + std::to_string(copy.from) + " both read and written",
                   "pages that are one or the other");
  return Status::ok();
}

}  // namespace tileformer::kv_cache
