// Every argument of append_kv, apply_rotary and copy_pages, once. All later code trusts it.
#pragma once

#include <span>

#include "tileformer/kv_append.h"

namespace tileformer::kv_cache {

Status check(const AppendArgs& args);
Status check(const RotaryArgs& args);
Status check_copies(std::span<const TensorView> pools, std::span<const PageCopy> copies);

}  // namespace tileformer::kv_cache
