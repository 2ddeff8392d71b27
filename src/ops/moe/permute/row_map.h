// The rows of each token, from the pair that each row names.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ops/moe/permute/kernel_args.h"
#include "tileformer/status.h"
#include "tileformer/tensor_view.h"

namespace tileformer::permute_op {

// Bytes of scratch for `rows` rows and tokens * k pairs.
std::size_t row_map_bytes(std::int64_t rows, std::int64_t tokens, std::int64_t k);

// source: i64 [rows]. A counting sort, linear in rows and pairs. A pair outside -1..tokens*k-1, or named
// twice, is an error.
Status map_rows(const TensorView& source, std::int64_t tokens, std::int64_t k, void* scratch, TokenRows* map);

}  // namespace tileformer::permute_op
