// Between torch tensors and TensorViews: views of inputs, allocation of outputs.
#pragma once

#include <torch/csrc/stable/tensor.h>

#include <array>
#include <cstdint>
#include <initializer_list>

#include "tileformer/tensor_view.h"

namespace tileformer::torch_binding {

using torch::stable::Tensor;

// View of an input. name is the argument's, for the message. Throws if the tensor is not on the CPU, has more
// than four dimensions or an element type that tileformer does not know.
TensorView view_of(const Tensor& tensor, const char* name);

// The same for a tensor that broadcasts against four dimensions: missing leading ones get size 1.
TensorView broadcast_view_of(const Tensor& tensor, const char* name);

// False where the elements of a row are not adjacent: the kernels need them so, and a copy has to be made.
bool has_unit_last_stride(const Tensor& tensor);

// The tensor, or a copy where the elements of a row are not adjacent.
Tensor with_unit_last_stride(const Tensor& tensor);

using Shape3 = std::array<std::int64_t, 3>;
using Shape4 = std::array<std::int64_t, 4>;

// Uninitialised CPU tensor [s0, s1, s2, s3], dense, with the dimensions in the order of `like` in memory:
// [batch, seq, heads, dim] storage stays so. The last dimension stays innermost.
Tensor empty_like_layout(const Shape4& sizes, const Tensor& like);

// Uninitialised CPU tensor [s0, s1, s2], dense, with the dimensions in memory as `order` says, outermost
// first.
Tensor empty_in_order(const Shape3& sizes, const std::array<int, 3>& order, DType dtype);

// Dense, of at most 4 dimensions.
Tensor empty_dense(std::initializer_list<std::int64_t> sizes, DType dtype);

}  // namespace tileformer::torch_binding
