// Every argument of permute_tokens and unpermute_tokens but the indices, once. All later code trusts it.
#pragma once

#include "tileformer/permute_tokens.h"

namespace tileformer::permute_op {

Status check(const PermuteTokensArgs& args);
Status check(const UnpermuteTokensArgs& args);
Status check(const UnpermuteTokensBackwardArgs& args);

}  // namespace tileformer::permute_op
