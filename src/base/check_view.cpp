#include "base/check_view.h"

#include "base/describe.h"

namespace tileformer {

Status wrong(const char* argument, const std::string& got, const std::string& expected) {
  return Status::invalid(std::string(argument) + ": got " + got + ", expected " + expected);
}

namespace {

// Bytes from the lowest to past the highest element; false if that or the number of elements is no int64.
bool span_fits(const TensorView& view) {
  std::int64_t elements = 1, span = 1;
  for (int i = 0; i < view.rank; ++i) {
    if (__builtin_mul_overflow(elements, view.shape[i], &elements)) return false;
    std::int64_t reach = 0;
    if (__builtin_mul_overflow(view.shape[i] - 1, view.stride[i], &reach) || reach == INT64_MIN) return false;
    if (__builtin_add_overflow(span, reach < 0 ? -reach : reach, &span)) return false;
  }
  const std::int64_t size = static_cast<std::int64_t>(size_of(view.dtype));
  return !__builtin_mul_overflow(span, size, &span) && !__builtin_mul_overflow(elements, size, &elements);
}

}  // namespace

Status check_view(const char* argument, const TensorView& view, int rank, const char* layout) {
  if (!view) return wrong(argument, "nothing", std::string("a tensor ") + layout);
  if (view.rank != rank) {
    const std::string got = std::to_string(view.rank) + " dimensions";
    const std::string shape =
        view.rank >= 0 && view.rank <= TensorView::kMaxRank ? " " + describe_shape(view) : "";
    return wrong(argument, got + shape, std::to_string(rank) + " dimensions " + layout);
  }
  bool empty = false;
  for (int i = 0; i < rank; ++i) {
    if (view.shape[i] < 0) return wrong(argument, "shape " + describe_shape(view), "sizes of at least 0");
    empty = empty || view.shape[i] == 0;
  }
  if (empty) return Status::ok();
  if (!span_fits(view)) {
    return wrong(argument, "shape " + describe_shape(view) + " with strides that reach beyond 64-bit offsets",
                 "a tensor whose byte offsets fit in 64 bits");
  }
  if (view.data == nullptr) {
    return wrong(argument, "a null pointer for shape " + describe_shape(view), "memory for every element");
  }
  if (reinterpret_cast<std::uintptr_t>(view.data) % size_of(view.dtype) != 0) {
    return wrong(argument, "a pointer that is not aligned to its elements",
                 "alignment to " + std::to_string(size_of(view.dtype)) + " bytes for " + name_of(view.dtype));
  }
  return Status::ok();
}

// A row of one element has no stride to speak of.
Status check_unit_stride(const char* argument, const TensorView& view) {
  const int last = view.rank - 1;
  if (view.shape[last] == 1 || view.stride[last] == 1 || view.elements() == 0) return Status::ok();
  return wrong(argument, "stride " + std::to_string(view.stride[last]) + " in the last dimension",
               "stride 1");
}

// Two elements of an output at one address would make the result depend on the order of the work.
Status check_distinct(const char* argument, const TensorView& view) {
  if (view.elements() == 0) return Status::ok();
  for (int i = 0; i < view.rank; ++i) {
    if (view.shape[i] > 1 && view.stride[i] == 0) {
      return wrong(argument,
                   "stride 0 in dimension " + std::to_string(i) + " of shape " + describe_shape(view),
                   "an output whose elements have addresses of their own");
    }
  }
  return Status::ok();
}

Status check_shape(const char* argument, const TensorView& view, const TensorView& expected,
                   const char* layout) {
  for (int i = 0; i < view.rank; ++i) {
    if (view.shape[i] != expected.shape[i]) {
      return wrong(argument, "shape " + describe_shape(view), describe_shape(expected) + " " + layout);
    }
  }
  return Status::ok();
}

Status check_like(const char* argument, const TensorView& view, DType dtype, const TensorView& like,
                  const char* layout) {
  if (Status s = check_view(argument, view, like.rank, layout); !s) return s;
  if (view.dtype != dtype)
    return wrong(argument, std::string("dtype ") + name_of(view.dtype), name_of(dtype));
  return check_shape(argument, view, like, layout);
}

}  // namespace tileformer
