// What the unit multiplies: how rows that are made on the way are kept. Included by kernels only.
#pragma once

#include "tile/pack.h"

namespace tileformer::TILEFORMER_UNIT {

template <int kElements>
struct Multiplied {
  using Storage = BF16;
};
template <>
struct Multiplied<1> {
  using Storage = F32;
};
using H = Multiplied<kElementsPerWord>::Storage;

}  // namespace tileformer::TILEFORMER_UNIT
