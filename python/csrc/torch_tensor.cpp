#include "torch_tensor.h"

#include <sys/mman.h>
#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/ops.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>

namespace tileformer::torch_binding {
namespace {

bool to_dtype(const Tensor& tensor, DType* dtype) {
  static const std::int32_t f32 = aoti_torch_dtype_float32(), f16 = aoti_torch_dtype_float16(),
                            bf16 = aoti_torch_dtype_bfloat16(), f64 = aoti_torch_dtype_float64(),
                            i32 = aoti_torch_dtype_int32(), i64 = aoti_torch_dtype_int64(),
                            boolean = aoti_torch_dtype_bool(), i8 = aoti_torch_dtype_int8(),
                            f8_e4m3 = aoti_torch_dtype_float8_e4m3fn(),
                            f8_e5m2 = aoti_torch_dtype_float8_e5m2();
  std::int32_t code = 0;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_dtype(tensor.get(), &code));
  if (code == f32)
    *dtype = DType::f32;
  else if (code == bf16)
    *dtype = DType::bf16;
  else if (code == f16)
    *dtype = DType::f16;
  else if (code == f64)
    *dtype = DType::f64;
  else if (code == boolean)
    *dtype = DType::boolean;
  else if (code == i32)
    *dtype = DType::i32;
  else if (code == i64)
    *dtype = DType::i64;
  else if (code == i8)
    *dtype = DType::i8;
  else if (code == f8_e4m3)
    *dtype = DType::f8_e4m3;
  else if (code == f8_e5m2)
    *dtype = DType::f8_e5m2;
  else
    return false;
  return true;
}

std::int32_t torch_code(DType dtype) {
  switch (dtype) {
    case DType::f32: return aoti_torch_dtype_float32();
    case DType::f16: return aoti_torch_dtype_float16();
    case DType::bf16: return aoti_torch_dtype_bfloat16();
    case DType::f64: return aoti_torch_dtype_float64();
    case DType::i32: return aoti_torch_dtype_int32();
    case DType::i64: return aoti_torch_dtype_int64();
    case DType::boolean: return aoti_torch_dtype_bool();
    case DType::i8: return aoti_torch_dtype_int8();
    case DType::f8_e4m3: return aoti_torch_dtype_float8_e4m3fn();
    case DType::f8_e5m2: return aoti_torch_dtype_float8_e5m2();
    case DType::i4x2: return aoti_torch_dtype_uint8();
  }
  return -1;
}

// Large memory is fresh at every call, and a page fault costs more than the copy that fills 4 KiB of it: in a
// virtual machine the 64 MiB of permute_tokens took 100 ms on pages of 4 KiB, 15 ms on huge ones. Advice:
// failure changes nothing but speed.
void advise_huge_pages(const Tensor& tensor) {
  constexpr std::uintptr_t kPage = 4096, kHugePage = std::uintptr_t{2} << 20;
  const auto begin = reinterpret_cast<std::uintptr_t>(tensor.const_data_ptr());
  const std::uintptr_t end = begin + static_cast<std::uintptr_t>(tensor.numel()) * tensor.element_size();
  const std::uintptr_t first = (begin + kPage - 1) / kPage * kPage, last = end / kPage * kPage;
  if (end - begin >= 2 * kHugePage) madvise(reinterpret_cast<void*>(first), last - first, MADV_HUGEPAGE);
}

Tensor allocate(std::int64_t rank, const std::int64_t* sizes, const std::int64_t* strides,
                std::int32_t dtype) {
  AtenTensorHandle handle = nullptr;
  TORCH_ERROR_CODE_CHECK(
      aoti_torch_empty_strided(rank, sizes, strides, dtype, aoti_torch_device_type_cpu(), 0, &handle));
  const Tensor tensor(handle);
  advise_huge_pages(tensor);
  return tensor;
}

}  // namespace

TensorView view_of(const Tensor& tensor, const char* name) {
  const auto sizes = tensor.sizes(), strides = tensor.strides();
  const int rank = static_cast<int>(sizes.size());
  if (rank > TensorView::kMaxRank)
    throw std::invalid_argument(std::string(name) + " has " + std::to_string(rank) +
                                " dimensions; at most 4 are allowed");
  TensorView view;
  if (!to_dtype(tensor, &view.dtype))
    throw std::invalid_argument(
        std::string(name) + " has dtype " + toString(tensor.scalar_type()) +
        "; allowed are float32, float16, bfloat16, float64, where integers or booleans are meant "
        "int32, int64, bool, and for pages int8, float8_e4m3fn, float8_e5m2");
  view.data = const_cast<void*>(tensor.const_data_ptr());
  view.rank = rank;
  view.present = true;
  for (int i = 0; i < rank; ++i) {
    view.shape[i] = sizes[i];
    view.stride[i] = sizes[i] == 1 && i == rank - 1 ? 1 : strides[i];  // torch allows any stride for size 1
  }
  return view;
}

TensorView broadcast_view_of(const Tensor& tensor, const char* name) {
  const TensorView given = view_of(tensor, name);
  TensorView view = given;
  view.rank = TensorView::kMaxRank;
  const int added = TensorView::kMaxRank - given.rank;
  for (int i = 0; i < TensorView::kMaxRank; ++i) {
    view.shape[i] = i < added ? 1 : given.shape[i - added];
    view.stride[i] = i < added ? 0 : given.stride[i - added];
  }
  return view;
}

bool has_unit_last_stride(const Tensor& tensor) {
  const std::int64_t rank = tensor.dim();
  if (rank == 0) return true;
  return tensor.strides()[rank - 1] == 1 || tensor.sizes()[rank - 1] <= 1;
}

Tensor with_unit_last_stride(const Tensor& tensor) {
  return has_unit_last_stride(tensor) ? tensor : torch::stable::contiguous(tensor);
}

Tensor empty_like_layout(const Shape4& sizes, const Tensor& like) {
  // Dimensions 0..2 from innermost to outermost, by the strides of `like`; a stride of 0 says nothing about
  // the order and leaves the dimension where it is. tileformer/_ops.py says the same for fake tensors.
  std::array<int, 3> order = {2, 1, 0};
  const auto strides = like.strides();
  for (int i = 1; i < 3; ++i) {
    for (int j = i; j > 0; --j) {
      const std::int64_t inner = strides[order[j - 1]], outer = strides[order[j]];
      if (inner == 0 || outer == 0 || inner <= outer) break;
      std::swap(order[j - 1], order[j]);
    }
  }
  Shape4 dense{};
  std::int64_t step = 1;
  for (const int d : {3, order[0], order[1], order[2]}) {
    dense[d] = step;
    step *= std::max<std::int64_t>(sizes[d], 1);
  }
  std::int32_t dtype = 0;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_dtype(like.get(), &dtype));
  return allocate(4, sizes.data(), dense.data(), dtype);
}

Tensor empty_dense(std::initializer_list<std::int64_t> sizes, DType dtype) {
  std::array<std::int64_t, TensorView::kMaxRank> strides{};
  const auto rank = static_cast<std::int64_t>(sizes.size());
  std::int64_t step = 1;
  for (std::int64_t i = rank - 1; i >= 0; --i) {
    strides[i] = step;
    step *= std::max<std::int64_t>(sizes.begin()[i], 1);
  }
  return allocate(rank, sizes.begin(), strides.data(), torch_code(dtype));
}

Tensor empty_in_order(const Shape3& sizes, const std::array<int, 3>& order, DType dtype) {
  Shape3 dense{};
  std::int64_t step = 1;
  for (const int d : {order[2], order[1], order[0]}) {
    dense[d] = step;
    step *= std::max<std::int64_t>(sizes[d], 1);
  }
  return allocate(3, sizes.data(), dense.data(), torch_code(dtype));
}

}  // namespace tileformer::torch_binding
