// check(): every argument of attention, and the numbers that follow from them.
#include <cmath>

#include "ops/attention/check_parts.h"

namespace tileformer::attention {
namespace {

Status check_scalars(const AttentionArgs& args) {
  if (args.scale && !std::isfinite(static_cast<float>(*args.scale))) {
    return wrong("scale", std::to_string(*args.scale), "a finite number, or none for 1/sqrt(dim)");
  }
  if (args.causal > Causal::bottom_right) {
    return wrong("causal", std::to_string(static_cast<int>(args.causal)), "none, top_left or bottom_right");
  }
  for (const auto& [name, size] :
       {std::pair{"window_left", args.window_left}, {"window_right", args.window_right}}) {
    if (size < -1) return wrong(name, std::to_string(size), "at least 0, or -1 for unlimited");
  }
  if (!std::isfinite(static_cast<float>(args.softcap)) || args.softcap < 0) {
    return wrong("softcap", std::to_string(args.softcap), "a finite number above 0, or 0 for none");
  }
  if (!(args.dropout_p >= 0 && args.dropout_p < 1)) {
    return wrong("dropout_p", std::to_string(args.dropout_p), "a probability of at least 0 and below 1");
  }
  return Status::ok();
}

}  // namespace

Status check(const AttentionArgs& args, Problem* problem) {
  Problem checked;
  Longest longest;
  if (Status s = check_tensors(args, &checked); !s) return s;
  if (Status s = check_sequences(args, &checked, &longest); !s) return s;
  if (Status s = check_bias(args, checked, longest); !s) return s;
  if (Status s = check_scalars(args); !s) return s;
  checked.scale = static_cast<float>(args.scale.value_or(1 / std::sqrt(static_cast<double>(checked.dim))));
  *problem = checked;
  return Status::ok();
}

}  // namespace tileformer::attention
