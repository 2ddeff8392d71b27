// Every argument of merge_attention_states, once. All later code trusts it.
#pragma once

#include "tileformer/merge_attention.h"

namespace tileformer::merge_attention {

inline constexpr int kMaxParts = 256;

Status check(const MergeAttentionArgs& args);

}  // namespace tileformer::merge_attention
