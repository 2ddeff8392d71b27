// Every argument of route and route_backward, once. All later code trusts it.
#pragma once

#include "tileformer/route.h"

namespace tileformer::route_op {

Status check(const RouteArgs& args);
Status check(const RouteBackwardArgs& args);

// Whether experts are compared by score + bias; by their logits otherwise.
inline bool compares_scores(const RouteArgs& args) { return args.bias || args.top_groups < args.num_groups; }

}  // namespace tileformer::route_op
