// Parts of every operator's check. Each returns the first thing that is wrong, as
// "<argument>: got <what was given>, expected <what is allowed>".
#pragma once

#include <string>

#include "tileformer/status.h"
#include "tileformer/tensor_view.h"

namespace tileformer {

Status wrong(const char* argument, const std::string& got, const std::string& expected);

// Rank and sizes, and that every element the strides reach has a 64-bit byte offset, memory and alignment.
Status check_view(const char* argument, const TensorView& view, int rank, const char* layout);

// Unit stride in the last dimension.
Status check_unit_stride(const char* argument, const TensorView& view);

// No two elements of an output at one address.
Status check_distinct(const char* argument, const TensorView& view);

// The sizes of `expected`; nothing else of it matters.
Status check_shape(const char* argument, const TensorView& view, const TensorView& expected,
                   const char* layout);

// As `like`, in dtype and shape.
Status check_like(const char* argument, const TensorView& view, DType dtype, const TensorView& like,
                  const char* layout);

}  // namespace tileformer
