// torch's own scaled_dot_product_attention on the CPU, carried out by tileformer while the override is on.
#pragma once

#include <cstdint>

namespace tileformer::torch_binding {

// Puts tileformer in place of aten::_scaled_dot_product_flash_attention_for_cpu, or torch's kernel back.
// Process-wide.
void set_sdpa_override(bool on);
bool sdpa_override();

struct SdpaCounts {
  std::int64_t here;                            // forward calls that tileformer carried out
  std::int64_t native;                          // forward calls passed on to torch's kernel
  std::int64_t backward_here, backward_native;  // the same of backward calls
};
SdpaCounts sdpa_counts();

}  // namespace tileformer::torch_binding
