#include "ops/kv_cache/limits.h"

#include <string>

#include "base/check_view.h"

namespace tileformer::kv_cache {

Status check_pool(std::int64_t pages, std::int64_t page_size) {
  if (pages < 0 || pages > kMaxPages)
    return wrong("pages", std::to_string(pages), "0 to " + std::to_string(kMaxPages));
  if (page_size < kMinPageSize || page_size > kMaxPageSize || page_size % kMinPageSize != 0)
    return wrong("page_size", std::to_string(page_size), "a multiple of 16 from 16 to 256");
  return Status::ok();
}

}  // namespace tileformer::kv_cache
