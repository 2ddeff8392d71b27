// Slots beyond the capacity of their expert.
#pragma once

#include "tileformer/route.h"

namespace tileformer::route_op {

// experts = chosen where the slot is kept; -1 with a weight of 0 where not. Arguments are checked, weights
// are complete. chosen may be args.experts itself.
Status drop_slots(const RouteArgs& args, const TensorView& chosen, Executor& executor);

}  // namespace tileformer::route_op
