#include <cmath>
#include <limits>
#include <vector>

#include "base/element.h"
#include "ops/kv_cache/check.h"

namespace tileformer {
namespace {

// The row of one token and head as it will be stored.
std::vector<float> row_of(const TensorView& x, std::int64_t token, std::int64_t head, const Rotary* rotary) {
  std::vector<float> row(static_cast<std::size_t>(x.shape[2]));
  for (std::int64_t i = 0; i < x.shape[2]; ++i)
    row[i] = float(load_element(x.data, x.dtype, token * x.stride[0] + head * x.stride[1] + i));
  if (!rotary || !rotary->cos) return row;

  const std::int64_t half = rotary->cos.shape[1];
  const std::int64_t position =
      static_cast<const std::int64_t*>(rotary->positions.data)[token * rotary->positions.stride[0]];
  for (std::int64_t i = 0; i < half; ++i) {
    const double c = load_element(rotary->cos.data, rotary->cos.dtype, position * rotary->cos.stride[0] + i);
    const double s = load_element(rotary->sin.data, rotary->sin.dtype, position * rotary->sin.stride[0] + i);
    float& first = row[rotary->interleaved ? 2 * i : i];
    float& second = row[rotary->interleaved ? 2 * i + 1 : half + i];
    const double a = first, b = second;
    first = float(a * c - b * s);
    second = float(b * c + a * s);
  }
  return row;
}

float largest_code(DType dtype) {
  return dtype == DType::i8 ? 127.0f : dtype == DType::f8_e4m3 ? 448.0f : 57344.0f;
}

// Codes in place of the row's elements; returns their scale.
float quantise(std::vector<float>& row, DType dtype) {
  float largest = 0;
  bool sound = true;
  for (float x : row) {
    largest = std::max(largest, std::abs(x));
    sound = sound && std::isfinite(x);
  }
  const bool zero = !sound || largest < 0x1p-100f;
  const float factor = zero ? 0 : largest_code(dtype) / largest;
  for (float& x : row) x = zero ? 0 : x * factor;
  if (!sound) return std::numeric_limits<float>::quiet_NaN();
  return zero ? 0 : largest / largest_code(dtype);
}

void append(const TensorView& from, const TensorView& pages, const TensorView& scale, const AppendArgs& args,
            const Rotary* rotary) {
  const std::int64_t page_size = pages.shape[2];
  for (std::int64_t token = 0; token < from.shape[0]; ++token) {
    const std::int64_t slot = static_cast<const std::int64_t*>(args.slots.data)[token * args.slots.stride[0]];
    if (slot < 0) continue;
    const std::int64_t page = slot / page_size, r = slot % page_size;
    for (std::int64_t head = 0; head < from.shape[1]; ++head) {
      std::vector<float> row = row_of(from, token, head, rotary);
      if (is_quantized(pages.dtype))
        static_cast<float*>(
            scale.data)[page * scale.stride[0] + head * scale.stride[1] + r * scale.stride[2]] =
            quantise(row, pages.dtype);
      for (std::int64_t i = 0; i < from.shape[2]; ++i)
        store_element(pages.data, pages.dtype,
                      page * pages.stride[0] + head * pages.stride[1] + r * pages.stride[2] + i, row[i]);
    }
  }
}

}  // namespace

Status append_kv_reference(const AppendArgs& args) {
  if (Status s = kv_cache::check(args); !s) return s;
  append(args.key, args.key_pages, args.key_scale, args, &args.rotary);
  if (args.value) append(args.value, args.value_pages, args.value_scale, args, nullptr);
  return Status::ok();
}

}  // namespace tileformer
