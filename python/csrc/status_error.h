// A failed Status as the exception that Python users expect.
#pragma once

#include <stdexcept>

#include "tileformer/status.h"

namespace tileformer::torch_binding {

// invalid argument -> ValueError, everything else -> RuntimeError. (torch translates the standard
// exceptions.)
inline void raise_if_failed(const Status& status) {
  switch (status.code()) {
    case StatusCode::ok: return;
    case StatusCode::invalid_argument: throw std::invalid_argument(status.message());
    case StatusCode::unsupported:
    case StatusCode::out_of_memory: throw std::runtime_error(status.message());
  }
}

}  // namespace tileformer::torch_binding
