// Every argument of cross_entropy, once. All later code trusts it.
#pragma once

#include "tileformer/cross_entropy.h"

namespace tileformer::cross_entropy_op {

Status check(const CrossEntropyArgs& args);

}  // namespace tileformer::cross_entropy_op
