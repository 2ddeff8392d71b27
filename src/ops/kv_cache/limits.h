// What a paged pool can be.
#pragma once

#include <cstdint>

#include "tileformer/status.h"

namespace tileformer::kv_cache {

constexpr std::int64_t kMinPageSize = 16, kMaxPageSize = 256;
// Page ids are int32, in block tables too.
constexpr std::int64_t kMaxPages = INT32_MAX;
// Attention's: positions plus a block are 32-bit in its kernels.
constexpr std::int64_t kMaxSequenceLength = (std::int64_t{1} << 31) - (std::int64_t{1} << 16) - 1;
// Attention's, too. An append keeps a row in fp32 on its stack.
constexpr std::int64_t kMaxHeadDim = 576;

Status check_pool(std::int64_t pages, std::int64_t page_size);

}  // namespace tileformer::kv_cache
