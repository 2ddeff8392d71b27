// torch.ops.tileformer.measure_*: the yardsticks of the benchmark, include/tileformer/peak.h.
#include <torch/csrc/stable/library.h>

#include <cstdint>

#include "status_error.h"
#include "tileformer/peak.h"
#include "torch_executor.h"

namespace tileformer::torch_binding {
namespace {

using torch::stable::detail::from;
using torch::stable::detail::to;

void measure_peak_op(StableIValue* stack, std::uint64_t, std::uint64_t) {
  double gflops = 0;
  raise_if_failed(measure_peak(static_cast<DType>(to<std::int64_t>(stack[0])), &gflops));
  stack[0] = from(gflops);
}

template <Status (*measure)(std::int64_t, Executor&, double*)>
void measure_bandwidth_op(StableIValue* stack, std::uint64_t, std::uint64_t) {
  TorchExecutor executor;
  double gb_per_s = 0;
  raise_if_failed(measure(to<std::int64_t>(stack[0]), executor, &gb_per_s));
  stack[0] = from(gb_per_s);
}

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(tileformer, m) {
  m.def("measure_peak(int dtype) -> float");
  m.def("measure_read_bandwidth(int bytes) -> float");
  m.def("measure_write_bandwidth(int bytes) -> float");
}

STABLE_TORCH_LIBRARY_IMPL(tileformer, CompositeExplicitAutograd, m) {
  m.impl("measure_peak", measure_peak_op);
  m.impl("measure_read_bandwidth", measure_bandwidth_op<measure_read_bandwidth>);
  m.impl("measure_write_bandwidth", measure_bandwidth_op<measure_write_bandwidth>);
}

}  // namespace tileformer::torch_binding
