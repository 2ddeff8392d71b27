#include "ops/cross_entropy/check.h"

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "base/describe.h"

namespace tileformer::cross_entropy_op {
namespace {

Status wrong(const char* argument, const std::string& got, const std::string& expected) {
  return Status::invalid(std::string(argument) + ": got " + got + ", expected " + expected);
}

std::string text(double x) {
  char digits[32];
  std::snprintf(digits, sizeof digits, "%g", x);
  return digits;
}

// Bytes from the lowest to past the highest element have to be an int64.
bool span_fits(const TensorView& view) {
  std::int64_t elements = 1, span = static_cast<std::int64_t>(size_of(view.dtype));
  for (int i = 0; i < view.rank; ++i) {
    std::int64_t reach = 0;
    if (__builtin_mul_overflow(elements, view.shape[i], &elements)) return false;
    if (__builtin_mul_overflow(view.shape[i] - 1, view.stride[i], &reach)) return false;
    if (__builtin_mul_overflow(reach, std::int64_t(size_of(view.dtype)), &reach) || reach == INT64_MIN)
      return false;
    if (__builtin_add_overflow(span, reach < 0 ? -reach : reach, &span)) return false;
  }
  return true;
}

Status check_memory(const char* argument, const TensorView& view) {
  if (view.elements() == 0) return Status::ok();
  if (!span_fits(view))
    return wrong(argument, "shape " + describe_shape(view) + " with strides that reach beyond 64-bit offsets",
                 "a tensor whose byte offsets fit in 64 bits");
  if (view.data == nullptr)
    return wrong(argument, "a null pointer for shape " + describe_shape(view), "memory for every element");
  if (reinterpret_cast<std::uintptr_t>(view.data) % size_of(view.dtype) != 0)
    return wrong(argument, "a pointer that is not aligned to its elements",
                 "alignment to " + std::to_string(size_of(view.dtype)) + " bytes for " + name_of(view.dtype));
  return Status::ok();
}

Status check_logits(const CrossEntropyArgs& args) {
  const TensorView& logits = args.logits;
  if (!logits) return wrong("logits", "nothing", "a tensor [rows, vocab]");
  if (logits.rank != 2)
    return wrong("logits", std::to_string(logits.rank) + " dimensions", "2 dimensions [rows, vocab]");
  if (!is_floating(logits.dtype))
    return wrong("logits", std::string("dtype ") + name_of(logits.dtype),
                 "float32, float16, bfloat16 or float64");
  if (logits.shape[0] < 0 || logits.shape[1] < 1)
    return wrong("logits", "shape " + describe_shape(logits), "at least 0 rows and at least 1 class");
  if (logits.stride[1] != 1 && logits.shape[1] > 1)
    return wrong("logits", "a stride of " + std::to_string(logits.stride[1]) + " between classes",
                 "a stride of 1 in the last dimension");
  if (args.gradient && logits.shape[0] > 1 && std::abs(logits.stride[0]) < logits.shape[1])
    return wrong(
        "logits", "rows that overlap: a stride of " + std::to_string(logits.stride[0]),
        "a row stride of at least " + std::to_string(logits.shape[1]) + " where the gradient is written");
  return check_memory("logits", logits);
}

// A vector of one element per row.
Status check_per_row(const char* argument, const TensorView& view, DType dtype, std::int64_t rows) {
  const std::string allowed = std::string(name_of(dtype)) + " [" + std::to_string(rows) + "], one per row";
  if (!view) return wrong(argument, "nothing", allowed);
  if (view.rank != 1 || view.dtype != dtype || view.shape[0] != rows)
    return wrong(argument, describe(view), allowed);
  return check_memory(argument, view);
}

Status check_distinct(const char* argument, const TensorView& view) {
  if (view.shape[0] > 1 && view.stride[0] == 0)
    return wrong(argument, "a stride of 0", "an address of its own for every row");
  return Status::ok();
}

Status check_scalars(const CrossEntropyArgs& args) {
  if (!(args.label_smoothing >= 0 && args.label_smoothing <= 1))
    return wrong("label_smoothing", text(args.label_smoothing), "a number from 0 to 1");
  if (!(args.z_loss >= 0 && args.z_loss <= 1e30))
    return wrong("z_loss", text(args.z_loss), "a number from 0 to 1e30");
  // Kernels hold 1 / softcap in fp32.
  if (!(args.softcap == 0 || (args.softcap >= 1e-30 && args.softcap <= 1e30)))
    return wrong("softcap", text(args.softcap), "a number from 1e-30 to 1e30, or 0 for none");
  return Status::ok();
}

Status check_targets(const CrossEntropyArgs& args) {
  const auto* target = static_cast<const std::int64_t*>(args.target.data);
  const std::int64_t rows = args.logits.shape[0], vocab = args.logits.shape[1];
  for (std::int64_t row = 0; row < rows; ++row) {
    const std::int64_t t = target[row * args.target.stride[0]];
    if ((t < 0 || t >= vocab) && t != args.ignore_index)
      return wrong(
          "target", std::to_string(t) + " in row " + std::to_string(row),
          "0 to " + std::to_string(vocab - 1) + ", or ignore_index " + std::to_string(args.ignore_index));
  }
  return Status::ok();
}

}  // namespace

Status check(const CrossEntropyArgs& args) {
  if (Status s = check_logits(args); !s) return s;
  const std::int64_t rows = args.logits.shape[0];
  const DType statistics = args.logits.dtype == DType::f64 ? DType::f64 : DType::f32;
  if (Status s = check_per_row("target", args.target, DType::i64, rows); !s) return s;
  if (Status s = check_per_row("loss", args.loss, statistics, rows); !s) return s;
  if (Status s = check_distinct("loss", args.loss); !s) return s;
  if (args.lse) {
    if (Status s = check_per_row("lse", args.lse, statistics, rows); !s) return s;
    if (Status s = check_distinct("lse", args.lse); !s) return s;
  }
  if (args.row_scale) {
    if (!args.gradient) return wrong("row_scale", describe(args.row_scale), "none where gradient is false");
    if (Status s = check_per_row("row_scale", args.row_scale, statistics, rows); !s) return s;
  }
  if (Status s = check_scalars(args); !s) return s;
  return check_targets(args);
}

}  // namespace tileformer::cross_entropy_op
