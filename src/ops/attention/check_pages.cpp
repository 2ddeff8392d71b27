// Paged keys: the table, the lengths, what the pages hold.
#include <algorithm>

#include "ops/attention/check_parts.h"
#include "ops/attention/index_at.h"

namespace tileformer::attention {
namespace {

// Kernels look a page up once for so many keys.
constexpr std::int64_t kPageMultiple = 16;

Status check_scale(const char* argument, const TensorView& scale, const char* pages_name,
                   const TensorView& pages) {
  if (!is_quantized(pages.dtype)) {
    if (!scale) return Status::ok();
    return wrong(argument, "a tensor",
                 std::string("nothing with ") + pages_name + " of " + name_of(pages.dtype));
  }
  if (!scale)
    return wrong(argument, "nothing",
                 std::string("float32 [pages, kv_heads, page_size] with ") + pages_name + " of " +
                     name_of(pages.dtype));
  const TensorView like(nullptr, DType::f32, {pages.shape[0], pages.shape[1], pages.shape[2]}, {});
  return check_like(argument, scale, DType::f32, like, "[pages, kv_heads, page_size]");
}

Status check_page_dtype(const char* argument, DType dtype, DType query) {
  if (is_quantized(dtype) || (is_floating(dtype) && (dtype != DType::f64 || query == DType::f64)))
    return Status::ok();
  return wrong(argument, std::string("dtype ") + name_of(dtype),
               "float32, float16, bfloat16, int8, float8_e4m3fn or float8_e5m2 in pages");
}

}  // namespace

Status check_pages(const AttentionArgs& args, Problem* problem, Longest* longest) {
  const TensorView &table = args.block_table, &lengths = args.key_lengths;
  if (!table) return wrong("block_table", "nothing", "a tensor, because key_lengths is given");
  if (!lengths) return wrong("key_lengths", "nothing", "a tensor, because block_table is given");
  if (args.cu_seqlens_key) return wrong("cu_seqlens_key", "a tensor", "nothing with block_table");
  if (Status s = check_page_dtype("key", args.key.dtype, args.query.dtype); !s) return s;
  if (Status s = check_page_dtype("value", args.value.dtype, args.query.dtype); !s) return s;
  if (Status s = check_scale("key_scale", args.key_scale, "key", args.key); !s) return s;
  if (Status s = check_scale("value_scale", args.value_scale, "value", args.value); !s) return s;

  if (Status s = check_view("block_table", table, 2, "[sequences, blocks]"); !s) return s;
  if (Status s = check_view("key_lengths", lengths, 1, "[sequences]"); !s) return s;
  for (const auto& [name, view] : {std::pair{"block_table", &table}, {"key_lengths", &lengths}}) {
    if (view->dtype != DType::i32) return wrong(name, std::string("dtype ") + name_of(view->dtype), "int32");
    if (view->shape[0] != problem->sequences)
      return wrong(name, "shape " + describe_shape(*view),
                   std::to_string(problem->sequences) + " rows, one for each sequence");
  }
  const std::int64_t blocks = table.shape[1], pages = args.key.shape[0], page_size = args.key.shape[2];
  if (blocks > 1 && table.stride[1] != 1)
    return wrong("block_table", "stride " + std::to_string(table.stride[1]) + " in the last dimension",
                 "stride 1");
  if (page_size < 1 || (page_size % kPageMultiple != 0 && blocks > 1))
    return wrong("key", "pages of " + std::to_string(page_size) + " keys",
                 "a multiple of " + std::to_string(kPageMultiple));

  for (std::int64_t n = 0; n < problem->sequences; ++n) {
    const std::int64_t length = index_at(lengths, n);
    if (length < 0 || length > blocks * page_size)
      return wrong("key_lengths", "[" + std::to_string(n) + "] = " + std::to_string(length),
                   "0 to " + std::to_string(blocks * page_size) + ", what " + std::to_string(blocks) +
                       " pages of " + std::to_string(page_size) + " hold");
    for (std::int64_t b = 0; b < (length + page_size - 1) / page_size; ++b) {
      const std::int64_t page = index_at(table, n, b);
      if (page < 0 || page >= pages)
        return wrong("block_table",
                     "[" + std::to_string(n) + ", " + std::to_string(b) + "] = " + std::to_string(page),
                     "0 to " + std::to_string(pages - 1) + ", a page of the pool");
    }
    longest->keys = std::max(longest->keys, length);
  }
  problem->page_size = page_size;
  problem->total_keys = longest->keys;
  return Status::ok();
}

}  // namespace tileformer::attention
