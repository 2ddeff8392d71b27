// check(): every argument of attention, and the numbers that follow from them.
#include <cmath>
#include <cstdio>

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

// Kernels hold scale * log2(e), softcap * log2(e) and scale / softcap in fp32.
Status check_fp32_range(const AttentionArgs& args, const Problem& problem) {
  if (problem.dtype == DType::f64) return Status::ok();
  const auto text = [](double x) {
    char digits[32];
    std::snprintf(digits, sizeof digits, "%g", x);
    return std::string(digits);
  };
  if (std::abs(problem.scale) > 1e38f) return wrong("scale", text(problem.scale), "at most 1e38 either way");
  if (args.softcap > 0 && (args.softcap < 1e-30 || args.softcap > 1e38)) {
    return wrong("softcap", text(args.softcap), "1e-30 to 1e38, or 0 for none");
  }
  if (args.softcap > 0 && !std::isfinite(problem.scale / static_cast<float>(args.softcap))) {
    return wrong("scale", text(problem.scale), "scale / softcap that is finite in float32");
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
  if (Status s = check_fp32_range(args, checked); !s) return s;
  *problem = checked;
  return Status::ok();
}

}  // namespace tileformer::attention
